-- Before dependents are told: what is told of must stay as it is until they know. What somebody holds is told of later.
SELECT run.id
FROM manta_run AS run
WHERE run.id = ANY(%(ids)s::uuid[])
ORDER BY run.id
FOR NO KEY UPDATE SKIP LOCKED
