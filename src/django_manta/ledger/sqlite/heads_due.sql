-- The first runs that are due.
SELECT run.id
FROM manta_run AS run
WHERE run.state = 'SCHEDULED' AND run.due_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %(ahead)s || ' seconds')
ORDER BY run.due_at
LIMIT %(limit)s
