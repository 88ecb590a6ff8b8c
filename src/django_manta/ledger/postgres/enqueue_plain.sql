-- Insert one new run that is ready at once, in the caller's transaction. Locks no existing row.
--
-- What enqueue.sql does for many, and for those that wait. Django's cursors prepare nothing: each statement is read and
-- planned anew, and with that one this takes longer than to insert a row.
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
    workflow_id,
    metadata,
    enqueued_at,
    deadline
)
VALUES (
    %(id)s::uuid,
    %(task)s,
    %(backend)s,
    %(queue)s,
    %(priority)s::smallint,
    'READY',
    %(arguments)s,
    %(overrides)s,
    %(signature)s,
    %(workflow)s::uuid,
    %(metadata)s::jsonb,
    statement_timestamp(),
    COALESCE(%(deadline_at)s::timestamptz, statement_timestamp() + make_interval(secs => %(deadline_in)s::double precision))
)
RETURNING
    enqueued_at,
    deadline
