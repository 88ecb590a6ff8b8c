-- What workers whose lease is lost, or that are gone, still hold: all of it, what is on a Ray, or what went with them.
SELECT
    run.id,
    run.token,
    run.task,
    run.backend,
    run.queue,
    run.overrides,
    run.losses,
    run.suspect,
    run.worker,
    run.attempts,
    COALESCE(worker.slots, 0),
    COALESCE(worker.foremen, '[]'),
    CASE WHEN isfinite(worker.lost_at) THEN EXTRACT(EPOCH FROM statement_timestamp() - worker.lost_at)::double precision END,
    COALESCE(worker.ray, '')
FROM manta_run AS run
LEFT JOIN manta_worker AS worker ON worker.id = run.worker
WHERE
    run.state IN ('RUNNING', 'CANCELLING')
    -- Without a token there is nothing that could be settled: `fsck --repair` sees to it.
    AND run.token IS NOT NULL
    AND (worker.id IS NULL OR worker.lost_at IS NOT NULL)
    AND (%(worker)s::text IS NULL OR run.worker = %(worker)s::text)
    AND (
        %(runner)s::text IS NULL
        -- A local Ray ended with its worker.
        OR %(runner)s::text = CASE
            WHEN worker.runner IN ('ray', 'ray_job') AND worker.ray_address <> 'local' THEN worker.runner
            ELSE ''
        END
    )
    AND (
        %(ray)s::text IS NULL
        -- Without one, it has never given a run to any; or it was a worker of an older release.
        OR worker.ray IN ('', %(ray)s::text)
        -- That Ray was started anew: unless somebody still speaks to it.
        OR (
            worker.ray_address = %(ray_address)s::text
            AND NOT EXISTS (
                SELECT 1 FROM manta_worker AS other
                WHERE other.runner = worker.runner AND other.ray = worker.ray AND other.lost_at IS NULL
            )
        )
    )
    AND (
        %(after_worker)s::text IS NULL
        OR (run.worker, run.id) > (%(after_worker)s::text, %(after_id)s::uuid)
    )
-- By worker first, as in the index of what is owned: by their ids alone, a plan that was made for an empty table would
-- read all runs that there are.
ORDER BY
    run.worker,
    run.id
LIMIT %(limit)s
