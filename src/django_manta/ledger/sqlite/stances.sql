-- Runs as those around them see them: where each stands, its gate, its name if it is a promise.
SELECT
    run.id,
    run.task,
    run.queue,
    run.state,
    run.reason,
    run.enqueued_at,
    run.started_at,
    run.last_attempted_at,
    run.finished_at,
    run.refused_at,
    run.suspect,
    run.delegate IS NOT NULL,
    promise.name,
    gate.mode,
    gate.armed,
    gate.made_at,
    gate.laters
FROM manta_run AS run
LEFT JOIN manta_gate AS gate ON gate.run_id = run.id
LEFT JOIN manta_promise AS promise ON promise.run_id = run.id
WHERE run.id IN (SELECT value FROM json_each(%(ids)s))
