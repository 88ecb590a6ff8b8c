-- Take a batch of ready runs for a worker.
--
-- Two looks at the index of ready runs, each bounded by batch × queues: the first, without locks,
-- lets the queues take turns and finds how many of the batch each one gets; the second locks just
-- so many, passing over what other workers are taking. When those were in the way, a third look
-- makes up for them from any queue, so that nobody goes away empty-handed while runs are ready.
-- No queue can starve another, and no row is locked that is not taken.
--
-- Of what was picked only so much is taken as weighs no more than the budget, and one more; by turns as well. The size
-- that octet_length() tells stands in the row, also where the value does not.
--
-- Tasks that are not wanted are left out by a CASE: of a comparison with a list that it does not know the
-- planner believes that hardly a row passes, and reads them all.
WITH wanted AS (
    SELECT
        listed.queue,
        listed.rank
    FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS listed (queue, rank)
    WHERE
        NOT EXISTS (
            SELECT FROM manta_queue AS queue
            WHERE queue.name = listed.queue AND queue.paused_at IS NOT NULL
        )
        -- What a worker takes after its lease was lost would only have to be recovered.
        AND NOT EXISTS (
            SELECT FROM manta_worker AS worker
            WHERE worker.id = %(worker)s AND worker.lost_at IS NOT NULL
        )
),
shares AS (
    SELECT
        turns.queue,
        turns.rank,
        count(*) AS share
    FROM (
        SELECT
            wanted.queue,
            wanted.rank
        FROM wanted
        CROSS JOIN LATERAL (
            SELECT row_number() OVER () AS turn
            FROM (
                SELECT FROM manta_run AS run
                WHERE
                    run.state = 'READY'
                    AND run.queue = wanted.queue
                    -- An expired run never starts, even before the caretaker has found it.
                    AND (run.expires_at IS NULL OR run.attempts > 0 OR run.expires_at > statement_timestamp())
                    AND run.deadline <= COALESCE(statement_timestamp() + make_interval(secs => %(horizon)s::double precision), 'infinity')
                    AND CASE WHEN run.task = ANY(%(not_tasks)s::text[]) OR run.id = ANY(%(not_ids)s::uuid[]) THEN false ELSE true END
                ORDER BY run.priority DESC, run.deadline, run.id
                LIMIT %(limit)s
            ) AS head
        ) AS line
        ORDER BY line.turn, wanted.rank
        LIMIT %(limit)s
    ) AS turns
    GROUP BY turns.queue, turns.rank
),
picked AS MATERIALIZED (
    SELECT
        head.id,
        head.weight,
        shares.rank
    FROM shares
    CROSS JOIN LATERAL (
        SELECT
            line.id,
            line.weight
        FROM (
            SELECT
                run.id,
                octet_length(run.arguments) AS weight
            FROM manta_run AS run
            WHERE
                run.state = 'READY'
                AND run.queue = shares.queue
                AND (run.expires_at IS NULL OR run.attempts > 0 OR run.expires_at > statement_timestamp())
                AND run.deadline <= COALESCE(statement_timestamp() + make_interval(secs => %(horizon)s::double precision), 'infinity')
                AND CASE WHEN run.task = ANY(%(not_tasks)s::text[]) OR run.id = ANY(%(not_ids)s::uuid[]) THEN false ELSE true END
            ORDER BY run.priority DESC, run.deadline, run.id
            -- For the planner, which takes a limit that it does not know for a tenth of the table.
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS line
        LIMIT shares.share
    ) AS head
),
made_up AS MATERIALIZED (
    SELECT
        head.id,
        head.weight,
        wanted.rank
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT
            run.id,
            octet_length(run.arguments) AS weight
        FROM manta_run AS run
        WHERE
            run.state = 'READY'
            AND run.queue = wanted.queue
            AND (run.expires_at IS NULL OR run.attempts > 0 OR run.expires_at > statement_timestamp())
            AND run.deadline <= COALESCE(statement_timestamp() + make_interval(secs => %(horizon)s::double precision), 'infinity')
            AND CASE WHEN run.task = ANY(%(not_tasks)s::text[]) OR run.id = ANY(%(not_ids)s::uuid[]) THEN false ELSE true END
            AND run.id <> ALL(ARRAY(SELECT picked.id FROM picked))
        ORDER BY run.priority DESC, run.deadline, run.id
        LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
    LIMIT (SELECT COALESCE(sum(shares.share), 0) FROM shares) - (SELECT count(*) FROM picked)
),
taken AS MATERIALIZED (
    SELECT
        each.*,
        row_number() OVER () AS place
    FROM (TABLE picked UNION ALL TABLE made_up) AS each
)
UPDATE manta_run AS run
SET
    state = 'RUNNING',
    worker = %(worker)s,
    token = nextval('manta_attempt_token_seq'),
    attempts = LEAST(run.attempts, 999999) + 1,
    started_at = COALESCE(run.started_at, statement_timestamp()),
    last_attempted_at = statement_timestamp()
-- An array, not a join: misjudging how many were picked, the planner would read the whole table.
WHERE run.id = ANY(
    CASE
        WHEN (SELECT COALESCE(sum(taken.weight), 0) FROM taken) <= %(budget)s THEN ARRAY(SELECT taken.id FROM taken)
        ELSE ARRAY(
            SELECT weighed.id
            FROM (
                SELECT
                    turns.id,
                    sum(turns.weight) OVER (ORDER BY turns.turn, turns.rank ROWS UNBOUNDED PRECEDING)
                    - turns.weight AS before
                FROM (
                    SELECT
                        taken.*,
                        row_number() OVER (PARTITION BY taken.rank ORDER BY taken.place) AS turn
                    FROM taken
                ) AS turns
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
