-- Remove finished runs and their attempts. What somebody holds (a retry) is passed over.
WITH old AS (
    SELECT id
    FROM manta_run
    WHERE
        id = ANY(%(ids)s::uuid[])
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
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM manta_run
    WHERE id = ANY(ARRAY(SELECT old.id FROM old))
    RETURNING id
),
edges AS (
    DELETE FROM manta_dependency
    -- What others remember of them stays: how they ended counts if somebody retries one of those.
    WHERE run_id = ANY(ARRAY(SELECT gone.id FROM gone))
),
gates AS (
    DELETE FROM manta_gate
    WHERE run_id = ANY(ARRAY(SELECT gone.id FROM gone))
),
promises AS (
    DELETE FROM manta_promise
    WHERE run_id = ANY(ARRAY(SELECT gone.id FROM gone))
),
attempts AS (
    DELETE FROM manta_attempt
    WHERE run_id = ANY(ARRAY(SELECT gone.id FROM gone))
)
SELECT id FROM gone
