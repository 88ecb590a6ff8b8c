-- The first runs that did not start in time.
SELECT run.id
FROM manta_run AS run
WHERE
    run.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
    AND run.expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
    AND run.attempts = 0
ORDER BY run.expires_at
LIMIT %(limit)s
