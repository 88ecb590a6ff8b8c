-- How many of what a run waits or waited for are in each state, by why it waits. No state: it is gone.
SELECT
    edge.role,
    precondition.state,
    count(*)
FROM manta_dependency AS edge
LEFT JOIN manta_run AS precondition ON precondition.id = edge.on_id
WHERE edge.run_id = %(id)s
GROUP BY
    edge.role,
    precondition.state
