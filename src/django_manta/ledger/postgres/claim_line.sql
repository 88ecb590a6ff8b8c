-- Take a batch of ready runs of one queue for a worker.
--
-- What claim.sql does for a worker with several queues, without the looks that let them take turns: of most
-- workers' only queue, and of every pickup while nothing else is waiting, those would be half of the time.
--
-- For the first CASE, the array and the weight, see there.
WITH picked AS MATERIALIZED (
    SELECT
        run.id,
        octet_length(run.arguments) AS weight
    FROM manta_run AS run
    WHERE
        run.state = 'READY'
        AND run.queue = %(queue)s
        -- An expired run never starts, even before the caretaker has found it.
        AND (run.expires_at IS NULL OR run.attempts > 0 OR run.expires_at > statement_timestamp())
        AND run.deadline <= COALESCE(statement_timestamp() + make_interval(secs => %(horizon)s::double precision), 'infinity')
        AND CASE WHEN run.task = ANY(%(not_tasks)s::text[]) OR run.id = ANY(%(not_ids)s::uuid[]) THEN false ELSE true END
        AND NOT EXISTS (
            SELECT FROM manta_queue AS queue
            WHERE queue.name = %(queue)s AND queue.paused_at IS NOT NULL
        )
        -- What a worker takes after its lease was lost would only have to be recovered.
        AND NOT EXISTS (
            SELECT FROM manta_worker AS worker
            WHERE worker.id = %(worker)s AND worker.lost_at IS NOT NULL
        )
    ORDER BY run.priority DESC, run.deadline, run.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE manta_run AS run
SET
    state = 'RUNNING',
    worker = %(worker)s,
    token = nextval('manta_attempt_token_seq'),
    attempts = LEAST(run.attempts, 999999) + 1,
    started_at = COALESCE(run.started_at, statement_timestamp()),
    last_attempted_at = statement_timestamp()
WHERE run.id = ANY(
    CASE
        WHEN (SELECT COALESCE(sum(picked.weight), 0) FROM picked) <= %(budget)s THEN ARRAY(SELECT picked.id FROM picked)
        -- The first of them whatever it weighs. The others are left as they are.
        ELSE ARRAY(
            SELECT weighed.id
            FROM (
                SELECT
                    picked.id,
                    sum(picked.weight) OVER (ROWS UNBOUNDED PRECEDING) - picked.weight AS before
                FROM picked
            ) AS weighed
            WHERE weighed.before < %(budget)s
        )
    END
)
RETURNING
    run.id,
    run.token,
    run.task,
    run.backend,
    run.queue,
    run.priority,
    run.arguments,
    run.overrides,
    run.signature,
    run.metadata::text,
    run.enqueued_at,
    run.run_after,
    run.deadline,
    run.expires_at,
    run.started_at,
    run.last_attempted_at,
    run.attempts,
    run.failures,
    run.crashes,
    run.losses,
    run.worker,
    CASE WHEN isfinite(run.refused_at) THEN EXTRACT(EPOCH FROM statement_timestamp() - run.refused_at)::double precision END,
    run.suspect,
    run.refs,
    run.workflow_id::text,
    run.dependents,
    -- What it is given, if that is little: a statement less for each step of a chain. The rest is fetched (values.sql),
    -- as is what many are given, of whom several may be given the same.
    CASE
        WHEN run.refs IS NOT NULL AND (SELECT count(*) FROM picked) <= 20 THEN ARRAY(
            SELECT ARRAY[replace(source.id::text, '-', ''), source.result, source.result_signature]
            FROM (
                SELECT edge.on_id FROM manta_dependency AS edge
                WHERE edge.run_id = run.id AND edge.role = 'value'
                LIMIT 3
            ) AS few
            -- One by one: a plan that was made for an empty table joins by reading all of it.
            CROSS JOIN LATERAL (
                SELECT
                    run.id,
                    run.result,
                    run.result_signature
                FROM manta_run AS run
                WHERE
                    run.id = few.on_id
                    AND run.state = 'SUCCESSFUL'
                    AND run.delegate IS NULL
                    AND octet_length(run.result) <= 8192
                LIMIT 1
            ) AS source
        )
    END
