-- The edges that lead to what some runs wait for, and those that lead to whoever waits for others.
SELECT *
FROM (
    SELECT
        edge.run_id,
        edge.on_id,
        edge.role,
        edge.told,
        edge.met
    FROM manta_dependency AS edge
    WHERE edge.run_id IN (SELECT value FROM json_each(%(up)s))
    ORDER BY edge.id
    LIMIT %(limit)s
)
UNION ALL
SELECT *
FROM (
    SELECT
        edge.run_id,
        edge.on_id,
        edge.role,
        edge.told,
        edge.met
    FROM manta_dependency AS edge
    WHERE edge.on_id IN (SELECT value FROM json_each(%(down)s))
    ORDER BY edge.id
    LIMIT %(limit)s
)
