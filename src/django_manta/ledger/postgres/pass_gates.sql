-- Move runs as their gates say: to the ready ones, or to the end, when what they waited for allows or forbids
-- it; back to the waiting ones, if something was reopened, what has not started or had failed for its sake.
--
-- Which edges ended badly is asked by a CASE: where very many runs wait for the same, the planner would otherwise find
-- that there is an index of those, and read them all for each.
WITH judged AS MATERIALIZED (
    SELECT
        verdict.*,
        CASE
                -- What it delegated to may be gone, and has no end that could be its own.
                WHEN verdict.delegate IS NOT NULL AND verdict.failed THEN COALESCE(verdict.child_state, 'UPSTREAM_FAILED')
                WHEN verdict.delegate IS NOT NULL AND verdict.ready THEN 'SUCCESSFUL'
                WHEN verdict.failed AND NOT verdict.passed THEN 'UPSTREAM_FAILED'
                WHEN verdict.ready AND verdict.due_at > statement_timestamp() THEN 'SCHEDULED'
                WHEN verdict.ready THEN 'READY'
                ELSE 'WAITING'
            END AS next_state
    FROM (
        SELECT
            run.id,
            run.state,
            run.delegate,
            CASE
                -- What is reopened before it ever started waits for its date again.
                WHEN run.state = 'UPSTREAM_FAILED' AND run.attempts = 0 AND run.run_after > statement_timestamp()
                    THEN run.run_after
                ELSE run.due_at
            END AS due_at,
            gate.passed,
            gate.mode,
            (
                SELECT child.state
                FROM manta_dependency AS edge
                JOIN manta_run AS child ON child.id = edge.on_id
                WHERE edge.run_id = run.id AND edge.role = 'delegate' AND CASE WHEN edge.told AND NOT edge.met THEN true ELSE false END
                ORDER BY child.finished_at, child.id
                LIMIT 1
            ) AS child_state,
            gate.bad_values > 0
            OR (
                run.delegate IS NULL
                AND (
                    (gate.mode = 'all_successful' AND gate.bad_after > 0)
                    OR (
                        gate.mode = 'any_successful'
                        AND gate.bad_after > 0
                        AND gate.pending_after = 0
                        AND gate.met_after = 0
                    )
                )
            ) AS failed,
            gate.pending_values = 0
            AND gate.bad_values = 0
            AND (
                run.delegate IS NOT NULL
                OR gate.pending_after = 0
                -- What has not been called yet for what made it ready stays ready as long as any of it stands.
                OR (
                    gate.mode = 'any_successful'
                    AND gate.met_after > CASE WHEN run.state = 'WAITING' THEN gate.consumed ELSE 0 END
                )
                OR (
                    gate.mode = 'any_finished'
                    AND gate.met_after::bigint + gate.bad_after > CASE WHEN run.state = 'WAITING' THEN gate.consumed ELSE 0 END
                )
                OR gate.passed
            ) AS ready
        FROM manta_gate AS gate
        JOIN manta_run AS run ON run.id = gate.run_id
        WHERE
            gate.run_id = ANY(%(ids)s::uuid[])
            AND gate.armed
            AND (
                run.state = 'WAITING'
                OR (
                    %(reopening)s::boolean
                    AND (
                        run.state IN ('READY', 'SCHEDULED', 'UPSTREAM_FAILED')
                        OR (run.delegate IS NOT NULL AND run.state IN ('FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
                    )
                )
            )
        -- In one order everywhere, so that two batches cannot wait for each other in a circle.
        ORDER BY run.id
        FOR NO KEY UPDATE OF run
    ) AS verdict
),
-- The ends that a run is called for count once, where any will do.
called AS (
    UPDATE manta_dependency AS edge
    SET called = true
    FROM judged
    WHERE
        edge.run_id = judged.id
        AND edge.role = 'after'
        AND (edge.met OR (edge.told AND judged.mode = 'any_finished'))
        AND NOT edge.called
        AND judged.mode IN ('any_successful', 'any_finished')
        AND judged.next_state IN ('READY', 'SCHEDULED')
        AND judged.state = 'WAITING'
),
consumed AS (
    UPDATE manta_gate AS gate
    SET consumed = CASE
        WHEN gate.mode = 'any_successful' THEN gate.met_after
        ELSE LEAST(gate.met_after::bigint + gate.bad_after, 999999999)
    END
    FROM judged
    WHERE
        gate.run_id = judged.id
        AND judged.mode IN ('any_successful', 'any_finished')
        AND judged.next_state IN ('READY', 'SCHEDULED')
        AND judged.state = 'WAITING'
),
moved AS (
    UPDATE manta_run AS run
    SET
        state = judged.next_state,
        due_at = CASE WHEN judged.next_state IN ('SCHEDULED', 'WAITING') THEN judged.due_at END,
        finished_at = CASE WHEN judged.next_state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') THEN statement_timestamp() END,
        reason = CASE
            WHEN judged.next_state IN ('FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') AND judged.delegate IS NOT NULL
                THEN COALESCE(
                        (
                            SELECT 'Run ' || edge.on_id || ', which it delegated to, ' || COALESCE('ended ' || child.state, 'is gone') || '.'
                            FROM manta_dependency AS edge
                            LEFT JOIN manta_run AS child ON child.id = edge.on_id
                            WHERE edge.run_id = run.id AND edge.role = 'delegate' AND CASE WHEN edge.told AND NOT edge.met THEN true ELSE false END
                            ORDER BY child.finished_at, edge.id
                            LIMIT 1
                        ),
                        'What it needs ended badly.'
                    )
            WHEN judged.next_state = 'UPSTREAM_FAILED'
                THEN COALESCE(
                        (
                            SELECT 'Run ' || edge.on_id || ', which it waits for, ' || COALESCE('ended ' || child.state, 'is gone') || '.'
                            FROM manta_dependency AS edge
                            LEFT JOIN manta_run AS child ON child.id = edge.on_id
                            WHERE edge.run_id = run.id AND CASE WHEN edge.told AND NOT edge.met THEN true ELSE false END
                            ORDER BY child.finished_at, edge.id
                            LIMIT 1
                        ),
                        'What it needs ended badly.'
                    )
            WHEN judged.next_state = 'WAITING' AND judged.delegate IS NOT NULL THEN 'It waits for what it delegated to.'
            -- What it said when it asked to be called again is still true.
            WHEN judged.state IN ('WAITING', 'READY', 'SCHEDULED') AND judged.next_state IN ('WAITING', 'READY', 'SCHEDULED')
                THEN run.reason
            ELSE ''
        END
    FROM judged
    WHERE run.id = judged.id AND run.state <> judged.next_state
    RETURNING
        run.id,
        run.state,
        run.queue,
        run.dependents,
        judged.state AS former
),
heralds AS (
    INSERT INTO manta_herald (run_id)
    SELECT moved.id FROM moved
    WHERE
        moved.dependents
        AND (moved.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') OR moved.former IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
    ON CONFLICT DO NOTHING
)
SELECT
    moved.id,
    moved.state,
    moved.queue,
    moved.dependents AND (moved.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') OR moved.former IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
FROM moved
