-- How much the values of runs weigh together.
SELECT COALESCE(sum(length(run.result)), 0)
FROM manta_run AS run
WHERE run.id IN (SELECT value FROM json_each(%(ids)s))
