-- Remove the edges of runs that are gone.
DELETE FROM manta_dependency
WHERE run_id = ANY(%(ids)s::uuid[]) AND NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = manta_dependency.run_id)
