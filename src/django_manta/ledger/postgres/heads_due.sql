-- The first runs that are due, held until the transaction ends.
SELECT run.id::text
FROM manta_run AS run
WHERE run.state = 'SCHEDULED' AND run.due_at <= statement_timestamp() + make_interval(secs => %(ahead)s)
ORDER BY run.due_at
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
