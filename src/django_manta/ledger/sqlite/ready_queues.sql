-- The queues that have ready runs: one step through the index per queue, not one per run.
WITH RECURSIVE found AS (
    SELECT * FROM (
        SELECT queue
        FROM manta_run
        WHERE state = 'READY'
        ORDER BY queue
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT run.queue
        FROM manta_run AS run
        WHERE run.state = 'READY' AND run.queue > found.queue
        ORDER BY run.queue
        LIMIT 1
    )
    FROM found
    WHERE found.queue IS NOT NULL
)
SELECT queue
FROM found
WHERE queue IS NOT NULL
