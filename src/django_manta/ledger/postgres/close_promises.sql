-- The names of promises that are settled are free again.
UPDATE manta_promise
SET open = false
WHERE run_id = ANY(%(ids)s::uuid[]) AND open
