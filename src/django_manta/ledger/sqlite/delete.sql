-- Remove finished runs.
DELETE FROM manta_run
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND finished_at IS NOT NULL
RETURNING id
