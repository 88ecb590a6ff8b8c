-- Where some runs stand, for who waits for them: it is asked often, and nothing else of them is read.
SELECT
    id,
    state
FROM manta_run
WHERE id IN (SELECT value FROM json_each(%(ids)s))
