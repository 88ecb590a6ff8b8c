-- How much the values of runs weigh together, with those of all that they delegated to.
WITH RECURSIVE wanted (id) AS (
    SELECT value FROM json_each(%(ids)s)
    UNION
    SELECT edge.on_id
    FROM wanted
    JOIN manta_dependency AS edge ON edge.run_id = wanted.id AND edge.role = 'delegate'
)
SELECT COALESCE(sum(length(run.result)), 0)
FROM wanted
JOIN manta_run AS run ON run.id = wanted.id
