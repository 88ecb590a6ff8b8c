-- Those of the runs that wait, directly or not, for themselves.
WITH RECURSIVE upstream (origin, id) AS (
    SELECT
        edge.run_id,
        edge.on_id
    FROM manta_dependency AS edge
    WHERE edge.run_id = ANY(%(ids)s::uuid[])
    UNION
    SELECT
        upstream.origin,
        edge.on_id
    FROM upstream
    JOIN manta_run AS run ON run.id = upstream.id AND run.finished_at IS NULL
    JOIN manta_dependency AS edge ON edge.run_id = upstream.id
)
SELECT DISTINCT origin
FROM upstream
WHERE origin = id
