-- Move the runs of a batch of executions. Zero rows mean "no longer mine".
-- RETURNING sees the row after the move, so the token of the settled execution is read back from
-- its attempt, which was appended just before in this transaction.
UPDATE manta_run
SET
    state = CASE WHEN incoming.cancelled THEN 'CANCELLED' ELSE incoming.next_state END,
    token = NULL,
    worker = '',
    due_at = CASE
        WHEN NOT incoming.cancelled AND incoming.next_state IN ('SCHEDULED', 'WAITING')
            THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', incoming.delay || ' seconds')
    END,
    finished_at = CASE
        WHEN incoming.cancelled OR incoming.next_state NOT IN ('READY', 'SCHEDULED', 'WAITING')
            THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
    END,
    started_at = CASE
        WHEN incoming.outcome = 'RETURNED' AND attempts = 1 THEN NULL
        ELSE started_at
    END,
    last_attempted_at = CASE
        -- What never started was no attempt: the latest one is the one before it.
        WHEN incoming.outcome = 'RETURNED' THEN (
            SELECT max(attempt.started_at) FROM manta_attempt AS attempt
            WHERE attempt.run_id = manta_run.id AND attempt.outcome <> 'RETURNED'
        )
        ELSE last_attempted_at
    END,
    attempts = attempts - (incoming.outcome = 'RETURNED'),
    failures = MIN(failures, 999999) + (incoming.outcome IN ('FAILED', 'TIMED_OUT')),
    -- What died in company is not charged: it is suspected, and travels alone next time.
    crashes = MIN(crashes, 999999) + (incoming.outcome = 'CRASHED' AND NOT incoming.suspect),
    losses = MIN(losses, 999999) + (incoming.outcome = 'LOST' AND NOT incoming.suspect),
    -- Only an end of its own clears a suspect.
    suspect = incoming.suspect
        OR (manta_run.suspect AND incoming.outcome NOT IN ('SUCCESSFUL', 'FAILED', 'TIMED_OUT')),
    refused_at = CASE
        WHEN incoming.refused THEN COALESCE(refused_at, strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'))
    END,
    result = incoming.result,
    result_signature = incoming.result_signature,
    delegate = CASE WHEN NOT incoming.cancelled THEN incoming.delegate END,
    -- A cancelled run keeps the reason that the cancel gave.
    reason = CASE WHEN incoming.cancelled THEN manta_run.reason ELSE incoming.reason END
FROM (
    SELECT
        run.id,
        run.token,
        run.state = 'CANCELLING' AND COALESCE(json_extract(one.value, '$.outcome'), 'SUCCESSFUL') <> 'SUCCESSFUL' AS cancelled,
        COALESCE(json_extract(one.value, '$.outcome'), 'SUCCESSFUL') AS outcome,
        COALESCE(json_extract(one.value, '$.next_state'), 'SUCCESSFUL') AS next_state,
        json_extract(one.value, '$.delay') AS delay,
        json_extract(one.value, '$.result') AS result,
        COALESCE(json_extract(one.value, '$.result_signature'), '') AS result_signature,
        json_extract(one.value, '$.delegate') AS delegate,
        COALESCE(json_extract(one.value, '$.reason'), '') AS reason,
        COALESCE(json_extract(one.value, '$.refused'), 0) AS refused,
        COALESCE(json_extract(one.value, '$.suspect'), 0) AS suspect
    FROM json_each(%(settlements)s) AS one
    JOIN manta_run AS run ON run.id = json_extract(one.value, '$.run_id') AND run.token = json_extract(one.value, '$.token')
    WHERE
        %(worker)s IS NULL
        OR (
            run.worker = %(worker)s
            -- A worker that lost its lease can change nothing, also before what it held was recovered.
            AND (
                %(recovering)s
                OR NOT EXISTS (
                    SELECT 1 FROM manta_worker AS worker
                    WHERE worker.id = %(worker)s AND worker.lost_at IS NOT NULL
                )
            )
        )
) AS incoming
WHERE manta_run.id = incoming.id AND manta_run.token = incoming.token
RETURNING
    (SELECT max(attempt.token) FROM manta_attempt AS attempt WHERE attempt.run_id = manta_run.id),
    state,
    dependents AND state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'),
    id
