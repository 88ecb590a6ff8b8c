-- End runs that asked to wait for something that waits for them.
UPDATE manta_run
SET
    state = 'FAILED',
    due_at = NULL,
    finished_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    result_signature = '',
    delegate = NULL,
    reason = refused.reason
FROM (
    SELECT
        json_extract(one.value, '$.run_id') AS run_id,
        json_extract(one.value, '$.reason') AS reason
    FROM json_each(%(refused)s) AS one
) AS refused
WHERE manta_run.id = refused.run_id AND manta_run.state IN ('WAITING', 'HELD')
RETURNING
    id,
    state,
    dependents
