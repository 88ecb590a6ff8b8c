-- Let held runs go: to wait for their due date, or straight to the ready ones.
WITH chosen AS (
    SELECT id
    FROM manta_run
    WHERE id = ANY(%(ids)s::uuid[]) AND state = 'HELD'
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY id
    FOR NO KEY UPDATE
),
unarmed AS (
    -- Their gates are looked at again: by the caller, or, if that does not happen, by the caretaker.
    UPDATE manta_gate AS gate
    SET armed = false
    FROM chosen
    WHERE gate.run_id = chosen.id
)
UPDATE manta_run AS run
SET
    state = CASE
        WHEN run.task = 'django_manta.workflow.kept.kept_from_outside' THEN 'WAITING'
        WHEN EXISTS (SELECT FROM manta_gate AS gate WHERE gate.run_id = run.id) THEN 'WAITING'
        WHEN run.due_at > statement_timestamp() THEN 'SCHEDULED'
        ELSE 'READY'
    END,
    due_at = CASE WHEN run.due_at > statement_timestamp() THEN run.due_at END,
    reason = ''
FROM chosen
WHERE run.id = chosen.id
RETURNING
    run.id,
    run.state
