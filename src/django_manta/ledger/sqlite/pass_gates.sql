-- Move runs as they were judged, in the same transaction.
UPDATE manta_run
SET
    state = judged.next_state,
    due_at = CASE WHEN judged.next_state IN ('SCHEDULED', 'WAITING') THEN judged.due_at END,
    finished_at = CASE WHEN judged.next_state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') END,
    reason = CASE
        WHEN judged.next_state IN ('FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') AND judged.delegates
            THEN COALESCE(
                    (
                        SELECT 'Run ' || substr(edge.on_id, 1, 8) || '-' || substr(edge.on_id, 9, 4) || '-' || substr(edge.on_id, 13, 4) || '-' || substr(edge.on_id, 17, 4) || '-' || substr(edge.on_id, 21) || ', which it delegated to, ' || COALESCE('ended ' || child.state, 'is gone') || '.'
                        FROM manta_dependency AS edge
                        LEFT JOIN manta_run AS child ON child.id = edge.on_id
                        WHERE edge.run_id = manta_run.id AND edge.role = 'delegate' AND edge.told AND NOT edge.met
                        ORDER BY child.finished_at, edge.id
                        LIMIT 1
                    ),
                    'What it needs ended badly.'
                )
        WHEN judged.next_state = 'UPSTREAM_FAILED'
            THEN COALESCE(
                    (
                        SELECT 'Run ' || substr(edge.on_id, 1, 8) || '-' || substr(edge.on_id, 9, 4) || '-' || substr(edge.on_id, 13, 4) || '-' || substr(edge.on_id, 17, 4) || '-' || substr(edge.on_id, 21) || ', which it waits for, ' || COALESCE('ended ' || child.state, 'is gone') || '.'
                        FROM manta_dependency AS edge
                        LEFT JOIN manta_run AS child ON child.id = edge.on_id
                        WHERE edge.run_id = manta_run.id AND edge.told AND NOT edge.met
                        ORDER BY child.finished_at, edge.id
                        LIMIT 1
                    ),
                    'What it needs ended badly.'
                )
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
