-- Move the runs of a batch of executions. Zero rows mean "no longer mine".
-- RETURNING sees the row after the move, so the token of the settled execution is read back from
-- its attempt, which was appended just before in this transaction.
UPDATE manta_run
SET
    state = CASE WHEN incoming.cancelled THEN 'CANCELLED' ELSE incoming.next_state END,
    token = NULL,
    worker = '',
    due_at = CASE
        WHEN NOT incoming.cancelled AND incoming.next_state = 'SCHEDULED'
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
        WHEN incoming.outcome = 'RETURNED' AND attempts = 1 THEN NULL
        ELSE last_attempted_at
    END,
    attempts = attempts - (incoming.outcome = 'RETURNED'),
    failures = failures + (incoming.outcome IN ('FAILED', 'TIMED_OUT')),
    crashes = crashes + (incoming.outcome = 'CRASHED'),
    losses = losses + (incoming.outcome = 'LOST'),
    refused_at = CASE
        WHEN incoming.refused THEN COALESCE(refused_at, strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'))
    END,
    result = incoming.result,
    result_signature = incoming.result_signature,
    -- A cancelled run keeps the reason that the cancel gave.
    reason = CASE WHEN incoming.cancelled THEN manta_run.reason ELSE incoming.reason END
FROM (
    SELECT
        run.id,
        run.token,
        run.state = 'CANCELLING' AND json_extract(one.value, '$.outcome') <> 'SUCCESSFUL' AS cancelled,
        json_extract(one.value, '$.outcome') AS outcome,
        json_extract(one.value, '$.next_state') AS next_state,
        json_extract(one.value, '$.delay') AS delay,
        json_extract(one.value, '$.result') AS result,
        json_extract(one.value, '$.result_signature') AS result_signature,
        json_extract(one.value, '$.reason') AS reason,
        json_extract(one.value, '$.refused') AS refused
    FROM json_each(%(settlements)s) AS one
    JOIN manta_run AS run ON run.id = json_extract(one.value, '$.run_id') AND run.token = json_extract(one.value, '$.token')
    WHERE %(worker)s IS NULL OR run.worker = %(worker)s
) AS incoming
WHERE manta_run.id = incoming.id AND manta_run.token = incoming.token
RETURNING
    (SELECT max(attempt.token) FROM manta_attempt AS attempt WHERE attempt.run_id = manta_run.id),
    state
