-- What runs wait for and was moved to an end, or back from one, and nobody has told of yet.
SELECT herald.run_id
FROM manta_herald AS herald
WHERE EXISTS (
    SELECT
    FROM manta_dependency AS edge
    WHERE edge.on_id = herald.run_id AND edge.run_id = ANY(%(ids)s::uuid[])
)
LIMIT 100
