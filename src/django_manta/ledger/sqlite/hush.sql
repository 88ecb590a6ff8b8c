-- All dependents of these have been told.
DELETE FROM manta_herald
WHERE
    manta_herald.run_id IN (SELECT value FROM json_each(%(ids)s))
    AND NOT EXISTS (
        SELECT 1
        FROM manta_run AS run
        JOIN manta_dependency AS edge ON edge.on_id = run.id
        WHERE run.id = manta_herald.run_id AND edge.told = (run.state NOT IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
    )
    AND NOT EXISTS (
        SELECT 1
        FROM manta_run AS run
        JOIN manta_dependency AS edge ON edge.on_id = run.id
        WHERE
            run.id = manta_herald.run_id
            AND edge.told
            AND run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
            AND edge.met = (run.state <> 'SUCCESSFUL')
    )
RETURNING run_id
