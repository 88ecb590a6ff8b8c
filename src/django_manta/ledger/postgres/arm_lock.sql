-- Before the preconditions of runs are counted: nobody may end, or reopen, one of them meanwhile; and no run that is
-- being executed may ask to wait for more, which would be missing in what is counted, and in a gate that is armed.
SELECT run.id
FROM manta_run AS run
-- Through an array, and so by primary key: of a join the planner makes a walk through all runs when many are new.
WHERE
    run.id = ANY(
        %(ids)s::uuid[]
        || ARRAY(SELECT edge.on_id FROM manta_dependency AS edge WHERE edge.run_id = ANY(%(ids)s::uuid[]))
    )
-- In one order everywhere, so that two batches cannot wait for each other in a circle.
ORDER BY run.id
FOR NO KEY UPDATE
