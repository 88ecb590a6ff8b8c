-- Insert new runs, in the caller's transaction. Locks no existing row.
--
-- What the runs of one kind (a task and its options) have in common comes once and is answered
-- once. The rest comes as a list a column, which the server takes apart in half the time of a list
-- of objects.
WITH kind AS MATERIALIZED (
    SELECT
        asked.*,
        CASE
            WHEN asked.hold THEN 'HELD'
            WHEN asked.waits THEN 'WAITING'
            WHEN moment.run_after > moment.now THEN 'SCHEDULED'
            ELSE 'READY'
        END AS state,
        moment.now,
        moment.run_after,
        COALESCE(asked.deadline_at, moment.now + make_interval(secs => asked.deadline_in)) AS deadline,
        COALESCE(asked.expires_at, moment.now + make_interval(secs => asked.expires_in)) AS expires
    FROM json_to_recordset(%(kinds)s::json) AS asked (
        place integer,
        task text,
        backend text,
        queue text,
        priority smallint,
        hold boolean,
        waits boolean,
        workflow uuid,
        overrides text,
        metadata text,
        run_after_at timestamptz,
        run_after_in double precision,
        deadline_at timestamptz,
        deadline_in double precision,
        expires_at timestamptz,
        expires_in double precision,
        enqueued_at timestamptz
    )
    CROSS JOIN LATERAL (
        SELECT
            -- What has no other moments may have been enqueued some time before it is inserted.
            COALESCE(asked.enqueued_at, statement_timestamp()) AS now,
            COALESCE(asked.run_after_at, statement_timestamp() + make_interval(secs => asked.run_after_in)) AS run_after
    ) AS moment
),
inserted AS (
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
        new.id::uuid,
        kind.task,
        kind.backend,
        kind.queue,
        kind.priority,
        kind.state,
        new.arguments,
        new.refs,
        kind.overrides,
        new.signature,
        kind.workflow,
        kind.metadata::jsonb,
        kind.now,
        kind.run_after,
        CASE WHEN kind.run_after > kind.now THEN kind.run_after END,
        kind.deadline,
        kind.expires
    FROM ROWS FROM (
        json_array_elements_text(%(ids)s::json),
        json_array_elements_text(%(arguments)s::json),
        json_array_elements_text(%(signatures)s::json),
        json_array_elements_text(%(places)s::json),
        json_array_elements_text(%(refs)s::json)
    ) AS new (id, arguments, signature, place, refs)
    JOIN kind ON kind.place = new.place::integer
)
SELECT
    place,
    state,
    now,
    run_after,
    deadline,
    expires
FROM kind
