-- Every run that breaks an invariant, with the check it fails. READY, RUNNING and the rest are
-- read in one snapshot, without locks: fsck waits for nobody.
SELECT
    'unknown-state' AS failed_check,
    run.id AS run_id,
    'state is ' || run.state AS detail
FROM manta_run AS run
WHERE
    run.state NOT IN (
        'HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING', 'CANCELLING', 'SUCCESSFUL', 'FAILED',
        'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
    )
UNION ALL
SELECT
    'owned-without-token',
    run.id,
    run.state || ' with no token or no worker'
FROM manta_run AS run
WHERE run.state IN ('RUNNING', 'CANCELLING') AND (run.token IS NULL OR run.worker = '')
UNION ALL
SELECT
    'token-without-owner',
    run.id,
    run.state || ' with token or worker left over'
FROM manta_run AS run
WHERE run.state NOT IN ('RUNNING', 'CANCELLING') AND (run.token IS NOT NULL OR run.worker <> '')
UNION ALL
SELECT
    'orphaned',
    run.id,
    run.state || ' under a worker that is gone: ' || run.worker
FROM manta_run AS run
WHERE
    run.state IN ('RUNNING', 'CANCELLING')
    AND run.worker <> ''
    AND NOT EXISTS (SELECT 1 FROM manta_worker AS worker WHERE worker.id = run.worker)
UNION ALL
SELECT
    'orphaned',
    run.id,
    run.state || ' under a worker that was lost: ' || run.worker
FROM manta_run AS run
JOIN manta_worker AS worker ON worker.id = run.worker
WHERE
    run.state IN ('RUNNING', 'CANCELLING')
    AND worker.lost_at IS NOT NULL
    AND NOT (
        worker.ray <> ''
        AND worker.ray_address <> 'local'
        AND NOT EXISTS (
            SELECT 1 FROM manta_worker AS other
            WHERE
                other.lost_at IS NULL
                AND other.runner = worker.runner
                AND (other.ray = worker.ray OR other.ray_address = worker.ray_address)
        )
    )
UNION ALL
SELECT
    'token-given-twice',
    run.id,
    run.state || ' under token ' || run.token || ', which attempt ' || attempt.number || ' of run ' || attempt.run_id || ' has'
FROM manta_run AS run
JOIN manta_attempt AS attempt ON attempt.token = run.token
WHERE run.state IN ('RUNNING', 'CANCELLING')
UNION ALL
SELECT
    'stranded',
    run.id,
    run.state || ' on the Ray at ' || worker.ray_address || ', to which no living worker speaks: ' || run.worker
FROM manta_run AS run
JOIN manta_worker AS worker ON worker.id = run.worker
WHERE
    run.state IN ('RUNNING', 'CANCELLING')
    AND worker.lost_at IS NOT NULL
    AND worker.ray <> ''
    AND worker.ray_address <> 'local'
    AND NOT EXISTS (
        SELECT 1 FROM manta_worker AS other
        WHERE
            other.lost_at IS NULL
            AND other.runner = worker.runner
            AND (other.ray = worker.ray OR other.ray_address = worker.ray_address)
    )
UNION ALL
SELECT
    'end-without-finish',
    run.id,
    run.state || ' with no finished_at'
FROM manta_run AS run
WHERE
    run.state IN (
        'SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
    )
    AND run.finished_at IS NULL
UNION ALL
SELECT
    'finish-without-end',
    run.id,
    run.state || ' with a finished_at'
FROM manta_run AS run
WHERE
    run.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING', 'CANCELLING')
    AND run.finished_at IS NOT NULL
UNION ALL
SELECT
    'scheduled-without-date',
    run.id,
    'SCHEDULED with no due_at: nothing would wake it'
FROM manta_run AS run
WHERE run.state = 'SCHEDULED' AND run.due_at IS NULL
UNION ALL
SELECT
    'date-without-schedule',
    run.id,
    run.state || ' with a due_at'
FROM manta_run AS run
WHERE run.state NOT IN ('SCHEDULED', 'HELD', 'WAITING') AND run.due_at IS NOT NULL
UNION ALL
SELECT
    'attempts-miscounted',
    run.id,
    'counts ' || run.attempts || ' attempts, has ' || (
        SELECT count(*) FROM manta_attempt AS attempt
        WHERE attempt.run_id = run.id AND attempt.outcome <> 'RETURNED'
    ) || ' ended'
FROM manta_run AS run
WHERE
    run.attempts <> (
        SELECT count(*) FROM manta_attempt AS attempt
        WHERE attempt.run_id = run.id AND attempt.outcome <> 'RETURNED'
    ) + CASE WHEN run.state IN ('RUNNING', 'CANCELLING') THEN 1 ELSE 0 END
UNION ALL
SELECT
    'success-unproven',
    run.id,
    run.state || ' with a number of successful attempts that does not fit'
FROM manta_run AS run
WHERE
    -- What delegated has no success of its own, and a promise is kept by nobody's attempt.
    (
        run.state = 'SUCCESSFUL'
        AND run.delegate IS NULL
        AND run.task <> 'django_manta.workflow.kept.kept_from_outside'
    ) <> (
        EXISTS (
            SELECT 1 FROM manta_attempt AS attempt
            WHERE attempt.run_id = run.id AND attempt.outcome = 'SUCCESSFUL'
        )
    )
UNION ALL
SELECT
    'settled-twice',
    attempt.run_id,
    count(*) || ' successful attempts'
FROM manta_attempt AS attempt
WHERE attempt.outcome = 'SUCCESSFUL'
GROUP BY attempt.run_id
HAVING count(*) > 1
UNION ALL
SELECT
    'attempt-without-run',
    attempt.run_id,
    'attempt ' || attempt.token || ' of a run that is gone'
FROM manta_attempt AS attempt
WHERE NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = attempt.run_id)
UNION ALL
SELECT
    'edge-without-run',
    edge.run_id,
    'an edge of a run that is gone'
FROM manta_dependency AS edge
WHERE NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = edge.run_id)
UNION ALL
SELECT
    'waiting-without-gate',
    run.id,
    'WAITING with no gate: nothing would wake it'
FROM manta_run AS run
WHERE
    run.state = 'WAITING'
    AND run.task <> 'django_manta.workflow.kept.kept_from_outside'
    AND NOT EXISTS (SELECT 1 FROM manta_gate AS gate WHERE gate.run_id = run.id)
UNION ALL
SELECT
    'untold-without-herald',
    edge.run_id,
    'waits for ' || run.state || ' run and nobody will tell it'
FROM manta_dependency AS edge
JOIN manta_run AS run ON run.id = edge.on_id
JOIN manta_gate AS gate ON gate.run_id = edge.run_id
WHERE
    gate.armed
    AND (
        edge.told <> (run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
        OR edge.met <> (run.state = 'SUCCESSFUL')
    )
    AND NOT EXISTS (SELECT 1 FROM manta_herald AS herald WHERE herald.run_id = run.id)
UNION ALL
SELECT
    'waiting-for-nothing',
    edge.run_id,
    'waits for run ' || edge.on_id || ', which is gone'
FROM manta_dependency AS edge
JOIN manta_gate AS gate ON gate.run_id = edge.run_id
JOIN manta_run AS dependent ON dependent.id = edge.run_id
WHERE
    gate.armed
    AND dependent.state = 'WAITING'
    AND NOT edge.told
    AND NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = edge.on_id)
UNION ALL
SELECT
    'gate-miscounted',
    gate.run_id,
    'its gate does not count what its edges say'
FROM manta_gate AS gate
JOIN manta_run AS run ON run.id = gate.run_id
LEFT JOIN (
    SELECT
        edge.run_id,
        count(CASE WHEN edge.role <> 'after' AND NOT edge.told THEN 1 END) AS pending_values,
        count(CASE WHEN edge.role <> 'after' AND edge.told AND NOT edge.met THEN 1 END) AS bad_values,
        count(CASE WHEN edge.role = 'after' AND NOT edge.told THEN 1 END) AS pending_after,
        count(CASE WHEN edge.role = 'after' AND edge.met THEN 1 END) AS met_after,
        count(CASE WHEN edge.role = 'after' AND edge.told AND NOT edge.met THEN 1 END) AS bad_after,
        count(CASE WHEN edge.called THEN 1 END) AS consumed
    FROM manta_dependency AS edge
    GROUP BY edge.run_id
) AS tally ON tally.run_id = gate.run_id
WHERE
    gate.armed
    AND (run.finished_at IS NULL OR run.state = 'UPSTREAM_FAILED')
    AND (
        gate.pending_values <> COALESCE(tally.pending_values, 0)
        OR gate.bad_values <> COALESCE(tally.bad_values, 0)
        OR gate.pending_after <> COALESCE(tally.pending_after, 0)
        OR gate.met_after <> COALESCE(tally.met_after, 0)
        OR gate.bad_after <> COALESCE(tally.bad_after, 0)
        -- What is held is counted when it is released.
        OR (gate.consumed <> COALESCE(tally.consumed, 0) AND run.state <> 'HELD')
    )
UNION ALL
SELECT
    'gate-ignored',
    run.id,
    run.state || ', though its gate lets it pass or forbids it'
FROM manta_run AS run
JOIN manta_gate AS gate ON gate.run_id = run.id
WHERE
    gate.armed
    AND run.state = 'WAITING'
    AND (
        gate.bad_values > 0
        OR (
            gate.pending_values = 0
            AND (
                run.delegate IS NOT NULL
                OR gate.passed
                OR gate.pending_after = 0
                OR (gate.mode = 'any_successful' AND gate.met_after > gate.consumed)
                OR (gate.mode = 'any_finished' AND CAST(gate.met_after AS bigint) + gate.bad_after > gate.consumed)
            )
        )
        OR (run.delegate IS NULL AND gate.mode = 'all_successful' AND gate.bad_after > 0)
    )
UNION ALL
SELECT
    'gate-without-run',
    gate.run_id,
    'a gate of a run that is gone'
FROM manta_gate AS gate
WHERE
    NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = gate.run_id)
    -- Otherwise one finding is enough: its repair removes both.
    AND NOT EXISTS (SELECT 1 FROM manta_dependency AS edge WHERE edge.run_id = gate.run_id)
UNION ALL
SELECT
    'promise-without-run',
    promise.run_id,
    'the name of a promise that is gone'
FROM manta_promise AS promise
WHERE NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = promise.run_id)
UNION ALL
SELECT
    'run-without-workflow',
    run.id,
    'of a workflow that is gone'
FROM manta_run AS run
WHERE
    run.workflow_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM manta_workflow AS workflow WHERE workflow.id = run.workflow_id)
ORDER BY failed_check, run_id
LIMIT %(limit)s
