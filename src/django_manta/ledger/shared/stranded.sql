-- Lost workers that left runs on a Ray to which no living worker speaks: nobody there can say what became of them.
SELECT
    worker.id,
    worker.runner,
    worker.ray_address,
    worker.ray,
    held.runs
FROM (
    SELECT
        run.worker,
        count(*) AS runs
    FROM manta_run AS run
    WHERE run.state IN ('RUNNING', 'CANCELLING')
    GROUP BY run.worker
) AS held
JOIN manta_worker AS worker ON worker.id = held.worker
WHERE
    worker.lost_at IS NOT NULL
    AND worker.ray <> ''
    AND worker.ray_address <> 'local'
    AND NOT EXISTS (
        SELECT 1 FROM manta_worker AS other
        WHERE
            other.lost_at IS NULL
            AND other.runner = worker.runner
            AND (other.ray = worker.ray OR other.ray_address = worker.ray_address)
    )
ORDER BY worker.id
LIMIT %(limit)s
