-- Before the preconditions of runs are counted: nobody may end, or reopen, one of them meanwhile.
SELECT run.id
FROM manta_run AS run
WHERE run.id IN (SELECT edge.on_id FROM manta_dependency AS edge WHERE edge.run_id = ANY(%(ids)s::uuid[]))
ORDER BY run.id
FOR NO KEY UPDATE
