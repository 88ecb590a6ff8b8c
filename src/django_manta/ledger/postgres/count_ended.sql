-- How many runs reached each end within the last so many seconds, and how long ago the first of those
-- counted did. Of each end at most so many are counted, the newest.
SELECT
    listed.state,
    counted.runs,
    counted.since
FROM unnest(%(states)s::text[]) AS listed (state)
CROSS JOIN LATERAL (
    SELECT
        count(*) AS runs,
        EXTRACT(EPOCH FROM statement_timestamp() - min(newest.finished_at))::double precision AS since
    FROM (
        SELECT run.finished_at
        FROM manta_run AS run
        WHERE
            run.state = listed.state
            AND run.finished_at > statement_timestamp() + make_interval(secs => -%(seconds)s)
        ORDER BY run.finished_at DESC
        LIMIT %(limit)s
    ) AS newest
) AS counted
