-- The values of successful runs, and of all that they delegated to, directly or not: unless they weigh too much.
WITH RECURSIVE wanted (id, delegates) AS (
    SELECT
        run.id,
        run.delegate IS NOT NULL
    FROM manta_run AS run
    WHERE run.id = ANY(%(ids)s::uuid[])
    UNION
    SELECT
        child.id,
        child.delegate IS NOT NULL
    FROM wanted
    JOIN manta_dependency AS edge ON edge.run_id = wanted.id AND edge.role = 'delegate'
    JOIN manta_run AS child ON child.id = edge.on_id
    WHERE wanted.delegates
),
found AS MATERIALIZED (
    SELECT
        run.id,
        run.result,
        run.result_signature,
        run.delegate
    FROM manta_run AS run
    WHERE run.id = ANY(ARRAY(SELECT wanted.id FROM wanted)) AND run.state = 'SUCCESSFUL'
)
SELECT
    replace(found.id::text, '-', ''),
    found.result,
    found.result_signature,
    found.delegate
FROM found
WHERE COALESCE((SELECT sum(octet_length(found.result)) FROM found) <= %(limit)s::bigint, true)
