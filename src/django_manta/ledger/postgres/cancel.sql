-- Cancel runs: at once what nothing runs of, by way of CANCELLING what is running.
WITH chosen AS (
    SELECT id
    FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING')
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY id
    FOR NO KEY UPDATE
)
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
    run.state
