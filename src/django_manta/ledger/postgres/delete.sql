-- Remove finished runs and their attempts. What somebody holds (a retry) is passed over.
WITH old AS (
    SELECT id
    FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND finished_at IS NOT NULL
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM manta_run
    WHERE id = ANY(ARRAY(SELECT old.id FROM old))
    RETURNING id
),
edges AS (
    DELETE FROM manta_dependency
    WHERE run_id = ANY(ARRAY(SELECT gone.id FROM gone)) OR on_id = ANY(ARRAY(SELECT gone.id FROM gone))
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
