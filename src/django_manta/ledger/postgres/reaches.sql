-- Which of the runs wait, directly or not, for themselves. A run that was never called has no edges but those that it
-- was made with, which nobody that it waits for can have known; unless that had ended, and was reopened.
WITH RECURSIVE upstream (origin, id) AS (
    SELECT
        edge.run_id,
        edge.on_id
    FROM manta_dependency AS edge
    JOIN manta_run AS origin ON origin.id = edge.run_id
    WHERE edge.run_id = ANY(%(ids)s::uuid[]) AND (origin.attempts > 0 OR edge.told OR %(reopened)s::boolean)
    UNION
    SELECT
        upstream.origin,
        edge.on_id
    FROM upstream
    -- What is running, or may at once, does not wait.
    JOIN manta_run AS run ON run.id = upstream.id AND run.state IN ('WAITING', 'HELD')
    JOIN manta_dependency AS edge ON edge.run_id = upstream.id AND CASE WHEN edge.told THEN false ELSE true END
    WHERE upstream.id <> upstream.origin
)
SELECT origin
FROM upstream
WHERE origin = id
