-- Executions change their owner and keep their token. Only those the former owner still holds.
UPDATE manta_run
SET worker = %(worker)s
WHERE
    worker = %(former)s
    AND EXISTS (
        SELECT 1
        FROM json_each(%(executions)s) AS wanted
        WHERE
            json_extract(wanted.value, '$.run_id') = manta_run.id
            AND json_extract(wanted.value, '$.token') = manta_run.token
    )
RETURNING token
