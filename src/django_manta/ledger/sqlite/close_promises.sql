-- The names of promises that are settled are free again.
UPDATE manta_promise
SET open = false
WHERE run_id IN (SELECT value FROM json_each(%(ids)s)) AND open
