-- What runs wait for, or waited for, in the order in which it was asked.
SELECT
    edge.run_id,
    edge.on_id,
    edge.role
FROM manta_dependency AS edge
WHERE edge.run_id IN (SELECT value FROM json_each(%(ids)s))
ORDER BY edge.id
