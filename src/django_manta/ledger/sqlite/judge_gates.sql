-- Where runs go as their gates say: to the ready ones, or to the end, when what they waited for allows or
-- forbids it; back to the waiting ones, if something was reopened, what has not started or had failed for its sake.
SELECT
    judged.id,
    judged.state,
    CASE
                -- What it delegated to may be gone, and has no end that could be its own.
                WHEN judged.delegate IS NOT NULL AND judged.failed THEN COALESCE(judged.child_state, 'UPSTREAM_FAILED')
                WHEN judged.delegate IS NOT NULL AND judged.ready THEN 'SUCCESSFUL'
                WHEN judged.failed AND NOT judged.passed THEN 'UPSTREAM_FAILED'
                WHEN judged.ready AND judged.due_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') THEN 'SCHEDULED'
                WHEN judged.ready THEN 'READY'
                ELSE 'WAITING'
            END AS next_state,
    judged.queue,
    judged.dependents,
    judged.delegate IS NOT NULL,
    judged.due_at
FROM (
    SELECT
        run.id,
        run.state,
        run.delegate,
        CASE
            -- What is reopened before it ever started waits for its date again.
            WHEN run.state = 'UPSTREAM_FAILED' AND run.attempts = 0 AND run.run_after > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
                THEN run.run_after
            ELSE run.due_at
        END AS due_at,
        run.queue,
        run.dependents,
        gate.passed,
        (
                SELECT child.state
                FROM manta_dependency AS edge
                JOIN manta_run AS child ON child.id = edge.on_id
                WHERE edge.run_id = run.id AND edge.role = 'delegate' AND edge.told AND NOT edge.met
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
                    AND gate.met_after + gate.bad_after > CASE WHEN run.state = 'WAITING' THEN gate.consumed ELSE 0 END
                )
                OR gate.passed
            ) AS ready
    FROM manta_gate AS gate
    JOIN manta_run AS run ON run.id = gate.run_id
    WHERE
        gate.run_id IN (SELECT value FROM json_each(%(ids)s))
        AND gate.armed
        AND (
            run.state = 'WAITING'
            OR (
                %(reopening)s
                AND (
                    run.state IN ('READY', 'SCHEDULED', 'UPSTREAM_FAILED')
                    OR (run.delegate IS NOT NULL AND run.state IN ('FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
                )
            )
        )
) AS judged
