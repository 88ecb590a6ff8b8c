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
),
moved AS (
    UPDATE manta_run AS run
    SET
        -- What waits for others waits for them again.
        state = CASE
            WHEN run.task = 'django_manta.workflow.kept.kept_from_outside' THEN 'WAITING'
            WHEN EXISTS (SELECT 1 FROM manta_gate AS gate WHERE gate.run_id = run.id) THEN 'WAITING'
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
    WHERE moved.dependents
    ON CONFLICT DO NOTHING
)
SELECT
    moved.id,
    moved.state,
    moved.dependents
FROM moved
