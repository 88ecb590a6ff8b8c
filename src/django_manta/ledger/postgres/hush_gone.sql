-- Nobody waits for news of runs that are gone.
DELETE FROM manta_herald AS herald
WHERE
    herald.run_id = ANY(%(ids)s::uuid[])
    AND NOT EXISTS (SELECT FROM manta_run AS run WHERE run.id = herald.run_id)
RETURNING run_id
