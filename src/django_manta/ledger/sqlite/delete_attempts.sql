-- Remove the attempts of runs that are gone.
DELETE FROM manta_attempt
WHERE run_id IN (SELECT value FROM json_each(%(ids)s))
