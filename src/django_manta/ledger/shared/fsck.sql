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
    (run.state = 'SUCCESSFUL') <> (
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
ORDER BY failed_check, run_id
LIMIT %(limit)s
