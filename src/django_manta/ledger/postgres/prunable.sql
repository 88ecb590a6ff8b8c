-- Finished runs of one state that are past their retention, oldest first, after a given one.
SELECT
    id,
    finished_at
FROM manta_run
WHERE
    state = %(state)s
    AND finished_at < statement_timestamp() + make_interval(secs => -%(age)s::double precision)
    AND (finished_at, id) > (%(after_time)s::timestamptz, %(after_id)s::uuid)
    -- What is not over yet, delegates, or failed for its sake may still refer to it; and what ended badly needs its
    -- values if somebody retries it.
    AND NOT EXISTS (
        SELECT 1
        FROM manta_dependency AS edge
        JOIN manta_run AS dependent ON dependent.id = edge.run_id
        WHERE
            edge.on_id = manta_run.id
            AND (
                dependent.finished_at IS NULL
                OR dependent.state = 'UPSTREAM_FAILED'
                OR (edge.role = 'value' AND dependent.state <> 'SUCCESSFUL')
                OR dependent.delegate IS NOT NULL
            )
    )
ORDER BY
    finished_at,
    id
LIMIT %(limit)s
