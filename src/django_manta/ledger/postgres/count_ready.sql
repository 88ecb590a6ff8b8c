-- How many runs of each queue are ready, and since how many seconds the longest waiting one is. Of
-- each queue the first so many are read, in the order of the claim and by its index.
SELECT
    listed.queue,
    counted.runs,
    counted.waited
FROM unnest(%(queues)s::text[]) AS listed (queue)
CROSS JOIN LATERAL (
    SELECT
        count(*) AS runs,
        EXTRACT(
            EPOCH FROM
            statement_timestamp() - min(GREATEST(first.enqueued_at, first.run_after, first.last_attempted_at))
        )::double precision AS waited
    FROM (
        SELECT
            run.enqueued_at,
            run.run_after,
            run.last_attempted_at
        FROM manta_run AS run
        WHERE run.state = 'READY' AND run.queue = listed.queue
        ORDER BY
            run.priority DESC,
            run.deadline,
            run.id
        LIMIT %(limit)s
    ) AS first
) AS counted
