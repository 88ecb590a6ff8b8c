-- Remove finished runs.
DELETE FROM manta_run
WHERE
    id IN (SELECT value FROM json_each(%(ids)s))
    AND finished_at IS NOT NULL
    -- Somebody may have begun to wait for it since it was chosen.
    AND NOT EXISTS (
        SELECT 1
        FROM manta_dependency AS edge
        JOIN manta_run AS dependent ON dependent.id = edge.run_id
        WHERE
            edge.on_id = manta_run.id
            AND (
                dependent.finished_at IS NULL
                OR dependent.state = 'UPSTREAM_FAILED'
                OR (edge.role = 'value' AND dependent.state <> 'SUCCESSFUL')
                OR dependent.delegate IS NOT NULL
            )
    )
RETURNING id
