-- Take a batch of ready runs for a worker.
--
-- Two looks at the index of ready runs, each bounded by batch × queues: the first, without locks,
-- lets the queues take turns and finds how many of the batch each one gets; the second locks just
-- so many, passing over what other workers are taking. No queue can starve another, and no row is
-- locked that is not taken.
WITH wanted AS (
    SELECT
        listed.queue,
        listed.rank
    FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS listed (queue, rank)
    WHERE NOT EXISTS (
        SELECT FROM manta_queue AS queue
        WHERE queue.name = listed.queue AND queue.paused_at IS NOT NULL
    )
),
shares AS (
    SELECT
        turns.queue,
        count(*) AS share
    FROM (
        SELECT wanted.queue
        FROM wanted
        CROSS JOIN LATERAL (
            SELECT row_number() OVER () AS turn
            FROM (
                SELECT FROM manta_run AS run
                WHERE run.state = 'READY' AND run.queue = wanted.queue
                ORDER BY run.priority DESC, run.deadline, run.id
                LIMIT %(limit)s
            ) AS head
        ) AS line
        ORDER BY line.turn, wanted.rank
        LIMIT %(limit)s
    ) AS turns
    GROUP BY turns.queue
),
picked AS MATERIALIZED (
    SELECT
        head.id,
        nextval('manta_attempt_token_seq') AS token
    FROM shares
    CROSS JOIN LATERAL (
        SELECT run.id
        FROM manta_run AS run
        WHERE
            run.state = 'READY'
            AND run.queue = shares.queue
            -- An expired run never starts, even before the caretaker has found it.
            AND (run.expires_at IS NULL OR run.attempts > 0 OR run.expires_at > statement_timestamp())
        ORDER BY run.priority DESC, run.deadline, run.id
        LIMIT shares.share
        FOR UPDATE SKIP LOCKED
    ) AS head
)
UPDATE manta_run AS run
SET
    state = 'RUNNING',
    worker = %(worker)s,
    token = picked.token,
    attempts = run.attempts + 1,
    started_at = COALESCE(run.started_at, statement_timestamp()),
    last_attempted_at = statement_timestamp()
FROM picked
WHERE run.id = picked.id
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
    EXTRACT(EPOCH FROM statement_timestamp() - run.refused_at)::double precision
