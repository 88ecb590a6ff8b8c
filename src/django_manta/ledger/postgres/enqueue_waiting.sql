-- Insert one new run that waits for others, with its gate and its edges, in the caller's transaction. Locks nothing that
-- others can see.
--
-- What enqueue.sql, add_gates.sql, add_edges.sql and arm_own.sql do for many. Where all that it waits for was enqueued in
-- this transaction, and is not over, it is counted and armed as well.
WITH under_way AS MATERIALIZED (
    SELECT run.id
    FROM manta_run AS run
    WHERE
        %(own)s
        AND run.id = ANY(%(preconditions)s::uuid[])
        AND run.state NOT IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
),
counted AS MATERIALIZED (
    SELECT
        %(own)s AND COALESCE(bool_and(edge.on_id IN (SELECT under_way.id FROM under_way)), false) AS armed,
        count(*) FILTER (WHERE edge.role <> 'after') AS pending_values,
        count(*) FILTER (WHERE edge.role = 'after') AS pending_after
    FROM unnest(%(preconditions)s::uuid[], %(roles)s::text[]) AS edge (on_id, role)
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
        deadline
    )
    VALUES (
        %(id)s::uuid,
        %(task)s,
        %(backend)s,
        %(queue)s,
        %(priority)s::smallint,
        'WAITING',
        %(arguments)s,
        %(refs)s,
        %(overrides)s,
        %(signature)s,
        %(workflow)s::uuid,
        %(metadata)s::jsonb,
        statement_timestamp(),
        COALESCE(%(deadline_at)s::timestamptz, statement_timestamp() + make_interval(secs => %(deadline_in)s::double precision))
    )
    RETURNING enqueued_at, deadline
),
edges AS (
    INSERT INTO manta_dependency (run_id, on_id, role)
    SELECT
        %(id)s::uuid,
        edge.on_id,
        edge.role
    FROM unnest(%(preconditions)s::uuid[], %(roles)s::text[]) AS edge (on_id, role)
),
flagged AS (
    UPDATE manta_run AS run
    SET dependents = true
    WHERE
        (SELECT counted.armed FROM counted)
        AND run.id = ANY(ARRAY(SELECT under_way.id FROM under_way))
        AND NOT run.dependents
),
gate AS (
    INSERT INTO manta_gate (run_id, mode, armed, pending_values, pending_after)
    SELECT
        %(id)s::uuid,
        %(mode)s,
        counted.armed,
        CASE WHEN counted.armed THEN counted.pending_values ELSE 0 END,
        CASE WHEN counted.armed THEN counted.pending_after ELSE 0 END
    FROM counted
)
SELECT
    inserted.enqueued_at,
    inserted.deadline,
    counted.armed
FROM inserted
CROSS JOIN counted
