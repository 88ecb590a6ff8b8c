-- Append the attempts of a batch of executions, before their runs move (same transaction).
INSERT INTO manta_attempt (
    token,
    run_id,
    number,
    outcome,
    worker,
    executor,
    started_at,
    finished_at,
    error_class,
    error_message,
    traceback,
    output,
    log_ref,
    peak_memory
)
SELECT
    run.token,
    run.id,
    run.attempts,
    COALESCE(json_extract(incoming.value, '$.outcome'), 'SUCCESSFUL'),
    run.worker,
    COALESCE(json_extract(incoming.value, '$.executor'), ''),
    strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', -json_extract(incoming.value, '$.duration') || ' seconds'),
    strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    COALESCE(json_extract(incoming.value, '$.error_class'), ''),
    COALESCE(json_extract(incoming.value, '$.error_message'), ''),
    COALESCE(json_extract(incoming.value, '$.traceback'), ''),
    COALESCE(json_extract(incoming.value, '$.output'), ''),
    COALESCE(json_extract(incoming.value, '$.log_ref'), ''),
    json_extract(incoming.value, '$.peak_memory')
FROM json_each(%(settlements)s) AS incoming
JOIN manta_run AS run
    ON run.id = json_extract(incoming.value, '$.run_id') AND run.token = json_extract(incoming.value, '$.token')
WHERE
    %(worker)s IS NULL
    OR (
        run.worker = %(worker)s
        -- A worker that lost its lease can change nothing, also before what it held was recovered.
        AND (
            %(recovering)s
            OR NOT EXISTS (
                SELECT 1 FROM manta_worker AS worker
                WHERE worker.id = %(worker)s AND worker.lost_at IS NOT NULL
            )
        )
    )
