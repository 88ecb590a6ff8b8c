-- Finished runs of one state that ended long enough ago, oldest first, after a given one, and whether each may go: it is
-- of one of these aliases, and nobody needs it. The index knows no aliases: no more are read than asked for.
WITH old AS MATERIALIZED (
    SELECT
        run.id,
        run.finished_at,
        run.backend
    FROM manta_run AS run
    WHERE
        run.state = %(state)s
        AND run.finished_at < statement_timestamp() + make_interval(secs => -%(age)s::double precision)
        AND (run.finished_at, run.id) > (%(after_time)s::timestamptz, %(after_id)s::uuid)
    ORDER BY
        run.finished_at,
        run.id
    LIMIT %(limit)s
)
SELECT
    old.id,
    old.finished_at,
    (%(backends)s::text[] IS NULL OR old.backend = ANY(%(backends)s::text[]))
    -- What is not over yet, delegates, or failed for its sake may still refer to it; and what ended badly needs its
    -- values if somebody retries it.
    AND NOT EXISTS (
        SELECT 1
        FROM manta_dependency AS edge
        JOIN manta_run AS dependent ON dependent.id = edge.run_id
        WHERE
            edge.on_id = old.id
            AND (
                dependent.finished_at IS NULL
                OR dependent.state = 'UPSTREAM_FAILED'
                OR (edge.role = 'value' AND dependent.state <> 'SUCCESSFUL')
                OR dependent.delegate IS NOT NULL
            )
    )
FROM old
ORDER BY
    old.finished_at,
    old.id
