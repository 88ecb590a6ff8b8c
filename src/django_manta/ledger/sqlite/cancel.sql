-- Cancel runs: at once what nothing runs of, by way of CANCELLING what is running.
UPDATE manta_run
SET
    state = CASE WHEN state = 'RUNNING' THEN 'CANCELLING' ELSE 'CANCELLED' END,
    due_at = NULL,
    finished_at = CASE WHEN state = 'RUNNING' THEN NULL ELSE strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') END,
    reason = %(reason)s
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING')
    -- What delegated ends with its delegates, which the caller cancels.
    AND NOT (state = 'WAITING' AND delegate IS NOT NULL)
RETURNING
    id,
    state,
    dependents AND state = 'CANCELLED'
