-- Finished runs of one state that are past their retention, oldest first, after a given one.
SELECT
    id,
    finished_at
FROM manta_run
WHERE
    state = %(state)s
    AND finished_at < strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', -%(age)s || ' seconds')
    AND (finished_at, id) > (%(after_time)s, %(after_id)s)
ORDER BY
    finished_at,
    id
LIMIT %(limit)s
