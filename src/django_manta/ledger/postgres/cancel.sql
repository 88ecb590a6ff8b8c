-- Cancel runs: at once what nothing runs of, by way of CANCELLING what is running.
WITH chosen AS (
    SELECT id
    FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING')
        -- What delegated ends with its delegates, which the caller cancels.
        AND NOT (state = 'WAITING' AND delegate IS NOT NULL)
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY id
    FOR NO KEY UPDATE
),
moved AS (
    UPDATE manta_run AS run
    SET
        state = CASE WHEN run.state = 'RUNNING' THEN 'CANCELLING' ELSE 'CANCELLED' END,
        due_at = NULL,
        finished_at = CASE WHEN run.state = 'RUNNING' THEN NULL ELSE statement_timestamp() END,
        reason = %(reason)s
    FROM chosen
    WHERE run.id = chosen.id
    RETURNING
        run.id,
        run.state,
        run.dependents
),
heralds AS (
    INSERT INTO manta_herald (run_id)
    SELECT moved.id FROM moved
    WHERE moved.dependents AND moved.state = 'CANCELLED'
    ON CONFLICT DO NOTHING
)
SELECT
    moved.id,
    moved.state,
    moved.dependents AND moved.state = 'CANCELLED'
FROM moved
