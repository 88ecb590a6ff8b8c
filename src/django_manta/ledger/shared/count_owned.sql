-- How many runs of each queue each worker holds.
SELECT
    held.queue,
    held.worker,
    count(*)
FROM (
    SELECT
        run.queue,
        run.worker
    FROM manta_run AS run
    WHERE run.state IN ('RUNNING', 'CANCELLING')
    ORDER BY run.worker
    LIMIT %(limit)s
) AS held
GROUP BY
    held.queue,
    held.worker
