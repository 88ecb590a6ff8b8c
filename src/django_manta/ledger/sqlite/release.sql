-- Let held runs go: to wait for their due date, or straight to the ready ones.
UPDATE manta_run
SET
    state = CASE
        WHEN task = 'django_manta.workflow.kept.kept_from_outside' THEN 'WAITING'
        WHEN EXISTS (SELECT 1 FROM manta_gate AS gate WHERE gate.run_id = manta_run.id) THEN 'WAITING'
        WHEN due_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') THEN 'SCHEDULED'
        ELSE 'READY'
    END,
    due_at = CASE WHEN due_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') THEN due_at END,
    reason = ''
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state = 'HELD'
RETURNING
    id,
    state
