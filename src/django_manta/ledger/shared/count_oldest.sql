-- Of the oldest runs that ended in a state, how many there are of each alias.
SELECT
    oldest.backend,
    count(*)
FROM (
    SELECT run.backend
    FROM manta_run AS run
    WHERE run.state = %(state)s AND run.finished_at IS NOT NULL
    ORDER BY
        run.finished_at,
        run.id
    LIMIT %(limit)s
) AS oldest
GROUP BY oldest.backend
ORDER BY oldest.backend
