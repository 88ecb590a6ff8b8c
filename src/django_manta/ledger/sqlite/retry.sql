-- An operator's retry of runs that ended badly: ready at once, with a fresh budget and no expiry.
UPDATE manta_run
SET
    -- What waits for others waits for them again.
    state = CASE
            WHEN task = 'django_manta.workflow.kept.kept_from_outside' THEN 'WAITING'
            WHEN EXISTS (SELECT 1 FROM manta_gate AS gate WHERE gate.run_id = manta_run.id) THEN 'WAITING'
            ELSE 'READY'
        END,
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
    delegate = NULL,
    reason = ''
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state IN (
    'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
)
RETURNING
    id,
    state,
    dependents
