-- An operator's retry: runs are called again for what they have been called for.
UPDATE manta_dependency
SET called = false
WHERE run_id = ANY(%(ids)s::uuid[]) AND called
