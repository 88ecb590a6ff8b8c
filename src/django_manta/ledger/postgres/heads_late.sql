-- The first runs that did not start in time, held until the transaction ends.
SELECT run.id::text
FROM manta_run AS run
WHERE
    run.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
    AND run.expires_at <= statement_timestamp()
    AND run.attempts = 0
ORDER BY run.expires_at
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
