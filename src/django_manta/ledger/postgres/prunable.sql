-- Finished runs of one state that are past their retention, oldest first, after a given one.
SELECT
    id,
    finished_at
FROM manta_run
WHERE
    state = %(state)s
    AND finished_at < statement_timestamp() + make_interval(secs => -%(age)s::double precision)
    AND (finished_at, id) > (%(after_time)s::timestamptz, %(after_id)s::uuid)
ORDER BY
    finished_at,
    id
LIMIT %(limit)s
