-- Executions change their owner and keep their token. Only those the former owner still holds.
WITH held AS (
    SELECT run.id
    FROM json_to_recordset(%(executions)s::json) AS wanted (run_id uuid, token bigint)
    JOIN manta_run AS run ON run.id = wanted.run_id AND run.token = wanted.token
    WHERE run.worker = %(former)s
    ORDER BY run.id
    FOR NO KEY UPDATE OF run SKIP LOCKED
)
UPDATE manta_run AS run
SET worker = %(worker)s
FROM held
WHERE run.id = held.id
RETURNING run.token
