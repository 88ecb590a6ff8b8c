-- Executions change their owner and keep their token. Only those the former owner still holds.
WITH held AS MATERIALIZED (
    SELECT run.id
    FROM json_to_recordset(%(executions)s::json) AS wanted (run_id uuid, token bigint)
    -- One by one, and then an array: a plan that was made for an empty table joins by reading all of it.
    CROSS JOIN LATERAL (
        SELECT run.id
        FROM manta_run AS run
        WHERE run.id = wanted.run_id AND run.token = wanted.token AND run.worker = %(former)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS run
)
UPDATE manta_run AS run
SET worker = %(worker)s
WHERE run.id = ANY(ARRAY(SELECT held.id FROM held))
RETURNING run.token
