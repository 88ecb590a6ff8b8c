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
    WHERE run.id = ANY(%(ids)s::uuid[])
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
),
free AS (
    SELECT
        run.id,
        wanted.deadline
    FROM wanted
    JOIN manta_run AS run ON run.id = wanted.id
    WHERE
        run.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
        AND run.deadline > wanted.deadline
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF run SKIP LOCKED
)
UPDATE manta_run AS run
SET deadline = free.deadline
FROM free
WHERE run.id = free.id
RETURNING run.id
