-- Where some runs stand, for who waits for them: it is asked often, and nothing else of them is read.
SELECT
    run.id,
    run.state
FROM manta_run AS run
WHERE run.id = ANY(%(ids)s::uuid[])
