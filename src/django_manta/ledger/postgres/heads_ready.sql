-- The first ready runs of some queues, those that a claim would take, held until the transaction ends.
SELECT run.id::text
FROM manta_run AS run
WHERE
    run.state = 'READY'
    AND run.queue = ANY(%(queues)s::text[])
    AND run.id <> ALL(%(not_ids)s::uuid[])
ORDER BY run.priority DESC, run.deadline, run.id
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
