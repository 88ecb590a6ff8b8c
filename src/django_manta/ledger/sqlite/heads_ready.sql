-- The first ready runs of some queues, those that a claim would take.
SELECT run.id
FROM manta_run AS run
WHERE
    run.state = 'READY'
    AND run.queue IN (SELECT value FROM json_each(%(queues)s))
    AND run.id NOT IN (SELECT value FROM json_each(%(not_ids)s))
ORDER BY run.priority DESC, run.deadline, run.id
LIMIT %(limit)s
