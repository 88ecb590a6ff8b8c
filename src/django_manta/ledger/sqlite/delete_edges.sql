-- Remove the edges of runs that are gone, in both directions.
DELETE FROM manta_dependency
WHERE
    run_id IN (SELECT value FROM json_each(%(ids)s))
    OR on_id IN (SELECT value FROM json_each(%(ids)s))
