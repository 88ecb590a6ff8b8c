-- The edges that lead to what some runs wait for, and those that lead to whoever waits for others.
(
    SELECT
        edge.run_id,
        edge.on_id,
        edge.role,
        edge.told,
        edge.met
    FROM manta_dependency AS edge
    WHERE edge.run_id = ANY(%(up)s::uuid[])
    ORDER BY edge.id
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT
        edge.run_id,
        edge.on_id,
        edge.role,
        edge.told,
        edge.met
    FROM manta_dependency AS edge
    WHERE edge.on_id = ANY(%(down)s::uuid[])
    ORDER BY edge.id
    LIMIT %(limit)s
)
