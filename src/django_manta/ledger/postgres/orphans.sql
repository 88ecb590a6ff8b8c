-- What workers whose lease is lost, or that are gone, still hold: all of it, what is on Ray, or what went with them.
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
    CASE WHEN isfinite(worker.lost_at) THEN EXTRACT(EPOCH FROM statement_timestamp() - worker.lost_at)::double precision END
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
        OR %(runner)s::text = CASE WHEN worker.runner IN ('ray', 'ray_job') THEN worker.runner ELSE '' END
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
