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
    (julianday('now') - julianday(worker.lost_at)) * 86400.0,
    COALESCE(worker.ray, '')
FROM manta_run AS run
LEFT JOIN manta_worker AS worker ON worker.id = run.worker
WHERE
    run.state IN ('RUNNING', 'CANCELLING')
    -- Without a token there is nothing that could be settled: `fsck --repair` sees to it.
    AND run.token IS NOT NULL
    AND (worker.id IS NULL OR worker.lost_at IS NOT NULL)
    AND (%(worker)s IS NULL OR run.worker = %(worker)s)
    AND (
        %(runner)s IS NULL
        -- A local Ray ended with its worker.
        OR %(runner)s = CASE
            WHEN worker.runner IN ('ray', 'ray_job') AND worker.ray_address <> 'local' THEN worker.runner
            ELSE ''
        END
    )
    AND (
        %(ray)s IS NULL
        -- Without one, it has never given a run to any; or it was a worker of an older release.
        OR worker.ray IN ('', %(ray)s)
        -- That Ray was started anew: unless somebody still speaks to it.
        OR (
            worker.ray_address = %(ray_address)s
            AND NOT EXISTS (
                SELECT 1 FROM manta_worker AS other
                WHERE other.runner = worker.runner AND other.ray = worker.ray AND other.lost_at IS NULL
            )
        )
    )
    AND (
        %(after_worker)s IS NULL
        OR (run.worker, run.id) > (%(after_worker)s, %(after_id)s)
    )
-- By worker first, as in the index of what is owned: by their ids alone, SQLite would walk the whole table.
ORDER BY
    run.worker,
    run.id
LIMIT %(limit)s
