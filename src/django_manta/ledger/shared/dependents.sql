-- Who waits or waited for a run.
SELECT
    edge.run_id,
    edge.on_id,
    edge.role,
    edge.told,
    edge.met
FROM manta_dependency AS edge
WHERE edge.on_id = %(id)s
ORDER BY edge.id
LIMIT %(limit)s
