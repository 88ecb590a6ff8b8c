-- How many runs of each queue are ready, and since how many seconds the longest waiting one is. Of
-- each queue the first so many are read, in the order of the claim and by its index.
SELECT
    listed.value,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM manta_run AS run
            WHERE run.state = 'READY' AND run.queue = listed.value
            LIMIT %(limit)s
        )
    ),
    (
        SELECT
            (
                julianday('now') - julianday(
                    min(
                        max(
                            first.enqueued_at,
                            COALESCE(first.run_after, first.enqueued_at),
                            COALESCE(first.last_attempted_at, first.enqueued_at)
                        )
                    )
                )
            ) * 86400.0
        FROM (
            SELECT
                run.enqueued_at,
                run.run_after,
                run.last_attempted_at
            FROM manta_run AS run
            WHERE run.state = 'READY' AND run.queue = listed.value
            ORDER BY
                run.priority DESC,
                run.deadline,
                run.id
            LIMIT %(limit)s
        ) AS first
    )
FROM json_each(%(queues)s) AS listed
