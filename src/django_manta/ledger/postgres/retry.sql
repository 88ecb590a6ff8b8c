-- An operator's retry of runs that ended badly: ready at once, with a fresh budget and no expiry.
WITH chosen AS (
    SELECT id
    FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND state IN (
        'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
    )
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE manta_run AS run
SET
    state = 'READY',
    due_at = NULL,
    finished_at = NULL,
    expires_at = NULL,
    refused_at = NULL,
    failures = 0,
    crashes = 0,
    losses = 0,
    progress = NULL,
    result = NULL,
    result_signature = '',
    reason = ''
FROM chosen
WHERE run.id = chosen.id
RETURNING
    run.id,
    run.state
