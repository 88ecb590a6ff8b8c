-- Insert new runs, in the caller's transaction. Locks no existing row.
INSERT INTO manta_run (
    id,
    task,
    backend,
    queue,
    priority,
    state,
    arguments,
    overrides,
    signature,
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
        WHEN moment.run_after > moment.now THEN 'SCHEDULED'
        ELSE 'READY'
    END,
    new.arguments,
    new.overrides,
    new.signature,
    new.metadata::jsonb,
    moment.now,
    moment.run_after,
    CASE WHEN moment.run_after > moment.now THEN moment.run_after END,
    COALESCE(new.deadline_at, moment.now + make_interval(secs => new.deadline_in)),
    COALESCE(new.expires_at, moment.now + make_interval(secs => new.expires_in))
FROM json_to_recordset(%(runs)s::json) AS new (
    id uuid,
    task text,
    backend text,
    queue text,
    priority smallint,
    hold boolean,
    arguments text,
    overrides text,
    signature text,
    metadata text,
    run_after_at timestamptz,
    run_after_in double precision,
    deadline_at timestamptz,
    deadline_in double precision,
    expires_at timestamptz,
    expires_in double precision
)
CROSS JOIN LATERAL (
    SELECT
        statement_timestamp() AS now,
        COALESCE(new.run_after_at, statement_timestamp() + make_interval(secs => new.run_after_in)) AS run_after
) AS moment
RETURNING
    id,
    state,
    enqueued_at,
    run_after,
    deadline,
    expires_at
