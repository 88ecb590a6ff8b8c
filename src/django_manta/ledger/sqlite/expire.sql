-- End what did not start in time. Runs that ever started do not expire.
UPDATE manta_run
SET
    state = 'EXPIRED',
    due_at = NULL,
    finished_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    reason = 'It did not start before it expired.'
WHERE
    id IN (
        SELECT late.id
        FROM manta_run AS late
        WHERE
            late.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
            AND late.expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
            AND late.attempts = 0
        ORDER BY late.expires_at
        LIMIT %(limit)s
    )
RETURNING
    id,
    state,
    dependents
