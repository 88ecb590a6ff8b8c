-- The edges of runs that wait for themselves by which they do: to those that wait, directly or not, for them.
WITH RECURSIVE waiting (origin, id) AS (
    SELECT
        run.id,
        run.id
    FROM manta_run AS run
    WHERE run.id = ANY(%(ids)s::uuid[])
    UNION
    SELECT
        waiting.origin,
        edge.run_id
    FROM waiting
    JOIN manta_dependency AS edge ON edge.on_id = waiting.id AND NOT edge.told
    JOIN manta_run AS run ON run.id = edge.run_id AND run.state IN ('WAITING', 'HELD')
)
SELECT
    edge.run_id,
    edge.on_id
FROM waiting
JOIN manta_dependency AS edge ON edge.run_id = waiting.origin AND edge.on_id = waiting.id
ORDER BY
    edge.run_id,
    edge.on_id
