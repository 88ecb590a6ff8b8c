-- Remove the names of promises that are gone.
DELETE FROM manta_promise
WHERE run_id IN (SELECT value FROM json_each(%(ids)s))
