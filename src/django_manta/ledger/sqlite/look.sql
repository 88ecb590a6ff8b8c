-- All that an idle worker needs to know: is something ready, when is something due, what is to be cancelled,
-- did something expire, whose leases are in force, is somebody to be told.
SELECT
    EXISTS (
        SELECT 1 FROM json_each(%(queues)s) AS listed
        WHERE
            EXISTS (SELECT 1 FROM manta_run AS run WHERE run.state = 'READY' AND run.queue = listed.value)
            AND NOT EXISTS (
                SELECT 1 FROM manta_queue AS queue
                WHERE queue.name = listed.value AND queue.paused_at IS NOT NULL
            )
    ),
    (
        SELECT (julianday(min(run.due_at)) - julianday('now')) * 86400.0
        FROM manta_run AS run
        WHERE run.state = 'SCHEDULED'
    ),
    (
        SELECT json_group_array(run.token)
        FROM manta_run AS run
        WHERE run.worker = %(worker)s AND run.state = 'CANCELLING'
    ),
    EXISTS (
        SELECT 1 FROM manta_run
        WHERE
            state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
            AND expires_at IS NOT NULL
            AND expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
            AND attempts = 0
    ),
    (
        SELECT json_group_array(json_array(worker.id, worker.seen_at, worker.lease_seconds))
        FROM manta_worker AS worker
        WHERE worker.lost_at IS NULL AND worker.id <> %(worker)s
    ),
    (
        EXISTS (SELECT 1 FROM manta_herald)
        OR EXISTS (SELECT 1 FROM manta_gate AS gate WHERE NOT gate.armed AND gate.made_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', '-1 seconds'))
    )
