-- Say to the preconditions of runs that somebody waits for them: whoever ends one has dependents to tell.
UPDATE manta_run
SET dependents = true
WHERE
    id IN (SELECT edge.on_id FROM manta_dependency AS edge WHERE edge.run_id IN (SELECT value FROM json_each(%(ids)s)))
    AND NOT dependents
