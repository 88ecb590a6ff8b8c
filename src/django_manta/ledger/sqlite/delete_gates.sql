-- Remove the gates of runs that are gone.
DELETE FROM manta_gate
WHERE run_id IN (SELECT value FROM json_each(%(ids)s))
