-- An operator's retry of runs that ended badly: ready at once, with a fresh budget and no expiry.
UPDATE manta_run
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
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state IN (
    'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
)
RETURNING
    id,
    state
