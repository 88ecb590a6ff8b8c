-- Say to the preconditions of runs that somebody waits for them: whoever ends one has dependents to tell.
UPDATE manta_run AS run
SET dependents = true
WHERE
    run.id = ANY(ARRAY(SELECT edge.on_id FROM manta_dependency AS edge WHERE edge.run_id = ANY(%(ids)s::uuid[])))
    AND NOT run.dependents
