-- Bring the deadlines of what runs wait for forward to theirs, up the graph, as far as nobody holds it. Ends and
-- what is running are left alone, and nobody is waited for.
WITH RECURSIVE upstream (id, deadline, depth) AS (
    -- Of very many that wait for the same, only the nearest matters.
    SELECT
        edge.on_id,
        min(run.deadline),
        1
    FROM manta_run AS run
    JOIN manta_dependency AS edge ON edge.run_id = run.id
    WHERE run.id IN (SELECT value FROM json_each(%(ids)s))
    GROUP BY edge.on_id
    UNION
    SELECT
        edge.on_id,
        upstream.deadline,
        upstream.depth + 1
    FROM upstream
    JOIN manta_run AS run ON run.id = upstream.id
    JOIN manta_dependency AS edge ON edge.run_id = run.id
    WHERE run.finished_at IS NULL AND run.deadline > upstream.deadline AND upstream.depth < %(depth)s
),
wanted AS (
    SELECT
        id,
        min(deadline) AS deadline
    FROM upstream
    GROUP BY id
)
UPDATE manta_run
SET deadline = (SELECT wanted.deadline FROM wanted WHERE wanted.id = manta_run.id)
WHERE
    id IN (
        SELECT run.id
        FROM wanted
        JOIN manta_run AS run ON run.id = wanted.id
        WHERE
            run.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
            AND run.deadline > wanted.deadline
        LIMIT %(limit)s
    )
RETURNING id
