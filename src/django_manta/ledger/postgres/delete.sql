-- Remove finished runs and their attempts.
WITH gone AS (
    DELETE FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND finished_at IS NOT NULL
    RETURNING id
),
attempts AS (
    DELETE FROM manta_attempt
    WHERE run_id IN (SELECT id FROM gone)
)
SELECT id FROM gone
