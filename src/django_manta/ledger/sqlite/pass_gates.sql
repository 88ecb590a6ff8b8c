-- Move runs as they were judged, in the same transaction.
UPDATE manta_run
SET
    state = judged.next_state,
    due_at = CASE WHEN judged.next_state IN ('SCHEDULED', 'WAITING') THEN judged.due_at END,
    finished_at = CASE WHEN judged.next_state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') END,
    reason = CASE
        WHEN judged.next_state IN ('FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') AND judged.delegates
            THEN 'What it delegated to ended ' || judged.next_state || '.'
        WHEN judged.next_state = 'UPSTREAM_FAILED' THEN 'A run that it waits for ended badly.'
        WHEN judged.next_state = 'WAITING' AND judged.delegates THEN 'It waits for what it delegated to.'
        -- What it said when it asked to be called again is still true.
        WHEN state IN ('WAITING', 'READY', 'SCHEDULED') AND judged.next_state IN ('WAITING', 'READY', 'SCHEDULED')
            THEN reason
        ELSE ''
    END
FROM (
    SELECT
        json_extract(one.value, '$.id') AS id,
        json_extract(one.value, '$.next_state') AS next_state,
        json_extract(one.value, '$.delegates') AS delegates,
        json_extract(one.value, '$.due_at') AS due_at
    FROM json_each(%(judged)s) AS one
) AS judged
WHERE manta_run.id = judged.id
