-- How much the values of runs weigh together.
SELECT COALESCE(sum(octet_length(run.result)), 0)
FROM manta_run AS run
WHERE run.id = ANY(%(ids)s::uuid[])
