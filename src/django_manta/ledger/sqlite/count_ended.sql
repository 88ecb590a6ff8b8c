-- How many runs reached each end within the last so many seconds, and how long ago the first of those
-- counted did. Of each end at most so many are counted, the newest.
SELECT
    listed.value,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM manta_run AS run
            WHERE
                run.state = listed.value
                AND run.finished_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', -%(seconds)s || ' seconds')
            LIMIT %(limit)s
        )
    ),
    (
        SELECT (julianday('now') - julianday(min(newest.finished_at))) * 86400.0
        FROM (
            SELECT run.finished_at
            FROM manta_run AS run
            WHERE
                run.state = listed.value
                AND run.finished_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', -%(seconds)s || ' seconds')
            ORDER BY run.finished_at DESC
            LIMIT %(limit)s
        ) AS newest
    )
FROM json_each(%(states)s) AS listed
