-- Everything unfinished that waits for a run, directly or not.
WITH RECURSIVE waiting (id) AS (
    SELECT edge.run_id
    FROM manta_dependency AS edge
    WHERE edge.on_id = %(id)s
    UNION
    SELECT edge.run_id
    FROM waiting
    JOIN manta_dependency AS edge ON edge.on_id = waiting.id
)
SELECT run.id
FROM waiting
JOIN manta_run AS run ON run.id = waiting.id
WHERE run.finished_at IS NULL
