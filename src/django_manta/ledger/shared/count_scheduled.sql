-- How many runs of each queue wait for their date, among the so many that are due next.
SELECT
    soonest.queue,
    count(*)
FROM (
    SELECT run.queue
    FROM manta_run AS run
    WHERE run.state = 'SCHEDULED'
    ORDER BY run.due_at
    LIMIT %(limit)s
) AS soonest
GROUP BY soonest.queue
