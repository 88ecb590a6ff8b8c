-- The values of successful runs, and of all that they delegated to, directly or not: unless they weigh too much.
WITH RECURSIVE wanted (id) AS (
    SELECT value FROM json_each(%(ids)s)
    UNION
    SELECT edge.on_id
    FROM wanted
    JOIN manta_dependency AS edge ON edge.run_id = wanted.id AND edge.role = 'delegate'
)
SELECT
    run.id,
    run.result,
    run.result_signature,
    run.delegate
FROM wanted
JOIN manta_run AS run ON run.id = wanted.id
WHERE
    run.state = 'SUCCESSFUL'
    AND COALESCE(
        (
            SELECT sum(length(run.result))
            FROM wanted
            JOIN manta_run AS run ON run.id = wanted.id
            WHERE run.state = 'SUCCESSFUL'
        ) <= %(limit)s,
        true
    )
