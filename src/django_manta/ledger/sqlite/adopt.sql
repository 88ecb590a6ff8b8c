-- Executions change their owner and keep their token. Only those the former owner still holds.
UPDATE manta_run
SET worker = %(worker)s
WHERE
    worker = %(former)s
    AND (id, token) IN (
        SELECT
            json_extract(wanted.value, '$.run_id'),
            json_extract(wanted.value, '$.token')
        FROM json_each(%(executions)s) AS wanted
    )
RETURNING token
