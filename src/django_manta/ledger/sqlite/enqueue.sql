-- Insert new runs, in the caller's transaction.
INSERT INTO manta_run (
    id,
    task,
    backend,
    queue,
    priority,
    state,
    arguments,
    refs,
    overrides,
    signature,
    workflow_id,
    metadata,
    enqueued_at,
    run_after,
    due_at,
    deadline,
    expires_at
)
SELECT
    new.id,
    new.task,
    new.backend,
    new.queue,
    new.priority,
    CASE
        WHEN new.hold THEN 'HELD'
        WHEN new.waits THEN 'WAITING'
        WHEN new.run_after > new.now THEN 'SCHEDULED'
        ELSE 'READY'
    END,
    new.arguments,
    new.refs,
    new.overrides,
    new.signature,
    new.workflow,
    new.metadata,
    new.now,
    new.run_after,
    CASE WHEN new.run_after > new.now THEN new.run_after END,
    new.deadline,
    new.expires_at
FROM (
    SELECT
        json_extract(asked.value, '$.id') AS id,
        json_extract(asked.value, '$.task') AS task,
        json_extract(asked.value, '$.backend') AS backend,
        json_extract(asked.value, '$.queue') AS queue,
        json_extract(asked.value, '$.priority') AS priority,
        json_extract(asked.value, '$.hold') AS hold,
        json_extract(asked.value, '$.waits') AS waits,
        json_extract(asked.value, '$.workflow') AS workflow,
        json_extract(asked.value, '$.refs') AS refs,
        json_extract(asked.value, '$.arguments') AS arguments,
        json_extract(asked.value, '$.overrides') AS overrides,
        json_extract(asked.value, '$.signature') AS signature,
        json_extract(asked.value, '$.metadata') AS metadata,
        -- What has no other moments may have been enqueued some time before it is inserted.
        COALESCE(json_extract(asked.value, '$.enqueued_at'), strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')) AS now,
        COALESCE(
            json_extract(asked.value, '$.run_after_at'),
            strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', json_extract(asked.value, '$.run_after_in') || ' seconds')
        ) AS run_after,
        COALESCE(
            json_extract(asked.value, '$.deadline_at'),
            strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', json_extract(asked.value, '$.deadline_in') || ' seconds')
        ) AS deadline,
        COALESCE(
            json_extract(asked.value, '$.expires_at'),
            strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', json_extract(asked.value, '$.expires_in') || ' seconds')
        ) AS expires_at
    FROM json_each(%(runs)s) AS asked
) AS new
WHERE true
RETURNING
    id,
    state,
    enqueued_at,
    run_after,
    deadline,
    expires_at
