-- All that an idle worker needs to know: is something ready, when is something due, what is to be cancelled,
-- did something expire, whose leases are in force, is somebody to be told.
SELECT
    EXISTS (
        SELECT FROM unnest(%(queues)s::text[]) AS listed (queue)
        WHERE
            -- The first in line, for there it is found by one step into the index. Whether there is any the planner may
            -- choose to find out from all of them: a plan may be older than the backlog.
            (
                SELECT true
                FROM manta_run AS run
                WHERE run.state = 'READY' AND run.queue = listed.queue
                ORDER BY run.priority DESC, run.deadline, run.id
                LIMIT 1
            )
            AND NOT EXISTS (
                SELECT FROM manta_queue AS queue
                WHERE queue.name = listed.queue AND queue.paused_at IS NOT NULL
            )
    ),
    (
        -- From infinity not every server can subtract.
        SELECT CASE min(run.due_at)
            WHEN '-infinity' THEN -1
            WHEN 'infinity' THEN NULL
            ELSE EXTRACT(EPOCH FROM min(run.due_at) - statement_timestamp())::double precision
        END
        FROM manta_run AS run
        WHERE run.state = 'SCHEDULED'
    ),
    (
        SELECT json_agg(run.token)::text
        FROM manta_run AS run
        WHERE run.worker = %(worker)s AND run.state = 'CANCELLING'
    ),
    EXISTS (
        SELECT 1 FROM manta_run
        WHERE
            state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
            AND expires_at IS NOT NULL
            AND expires_at <= statement_timestamp()
            AND attempts = 0
    ),
    (
        SELECT json_agg(json_build_array(worker.id, worker.seen_at::text, worker.lease_seconds))::text
        FROM manta_worker AS worker
        WHERE worker.lost_at IS NULL AND worker.id <> %(worker)s
    ),
    (
        EXISTS (SELECT 1 FROM manta_herald)
        OR EXISTS (SELECT 1 FROM manta_gate AS gate WHERE NOT gate.armed AND gate.made_at <= statement_timestamp() + make_interval(secs => -1))
    )
