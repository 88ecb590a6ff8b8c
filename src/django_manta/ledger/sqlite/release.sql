-- Let held runs go: to wait for their due date, or straight to the ready ones.
UPDATE manta_run
SET
    state = CASE WHEN due_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') THEN 'SCHEDULED' ELSE 'READY' END,
    due_at = CASE WHEN due_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') THEN due_at END,
    reason = ''
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state = 'HELD'
RETURNING
    id,
    state
