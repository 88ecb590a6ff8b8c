-- Keep runs back until a person releases them. Their due date stays.
WITH chosen AS (
    SELECT
        id,
        state
    FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND state IN ('SCHEDULED', 'WAITING', 'READY')
        -- What has delegated will not be called again: there is nothing to keep back.
        AND delegate IS NULL
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY id
    FOR NO KEY UPDATE
),
uncalled AS (
    -- What is ready has not been called for what made it so.
    UPDATE manta_dependency AS edge
    SET called = false
    FROM chosen
    WHERE edge.run_id = chosen.id AND edge.called AND chosen.state <> 'WAITING'
)
UPDATE manta_run AS run
SET
    state = 'HELD',
    reason = %(reason)s
FROM chosen
WHERE run.id = chosen.id
RETURNING
    run.id,
    run.state
