-- Before the preconditions of runs are counted: nobody may end, or reopen, one of them meanwhile.
SELECT run.id
FROM manta_run AS run
-- Through an array, and so by primary key: of a join the planner makes a walk through all runs when many are new.
WHERE run.id = ANY(ARRAY(SELECT edge.on_id FROM manta_dependency AS edge WHERE edge.run_id = ANY(%(ids)s::uuid[])))
ORDER BY run.id
FOR NO KEY UPDATE
