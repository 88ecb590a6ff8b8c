-- How many ready runs of a queue are claimed before a given one: so many are read, in the order of the claim.
SELECT count(*)
FROM (
    SELECT 1
    FROM manta_run AS run
    WHERE
        run.state = 'READY'
        AND run.queue = %(queue)s
        AND (
            run.priority > %(priority)s
            OR (run.priority = %(priority)s AND (run.deadline, run.id) < (%(deadline)s, %(id)s))
        )
    ORDER BY
        run.priority DESC,
        run.deadline,
        run.id
    LIMIT %(limit)s
) AS first
