-- Settle a batch of executions: move each run, append its attempt. Zero rows mean "no longer mine".
--
-- Rows are found by primary key and token only (DESIGN: a condition on the state would walk the
-- partial index of running rows and its dead entries). Rows that somebody holds are passed over,
-- for the caller to try again: a settlement waits for nobody and deadlocks with nobody.
WITH incoming AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(settlements)s::json) AS one (
        run_id uuid,
        token bigint,
        outcome text,
        next_state text,
        delay double precision,
        duration double precision,
        result text,
        result_signature text,
        reason text,
        executor text,
        error_class text,
        error_message text,
        traceback text,
        output text,
        log_ref text,
        peak_memory bigint,
        refused boolean
    )
),
held AS MATERIALIZED (
    SELECT
        run.id,
        run.worker,
        run.attempts,
        run.state = 'CANCELLING' AND incoming.outcome <> 'SUCCESSFUL' AS cancelled,
        incoming.*
    FROM incoming
    JOIN manta_run AS run ON run.id = incoming.run_id AND run.token = incoming.token
    WHERE %(worker)s::text IS NULL OR run.worker = %(worker)s::text
    ORDER BY run.id
    FOR UPDATE OF run SKIP LOCKED
),
moved AS (
    UPDATE manta_run AS run
    SET
        state = CASE WHEN held.cancelled THEN 'CANCELLED' ELSE held.next_state END,
        token = NULL,
        worker = '',
        due_at = CASE
            WHEN NOT held.cancelled AND held.next_state = 'SCHEDULED'
                THEN statement_timestamp() + make_interval(secs => held.delay)
        END,
        finished_at = CASE
            WHEN held.cancelled OR held.next_state NOT IN ('READY', 'SCHEDULED', 'WAITING')
                THEN statement_timestamp()
        END,
        started_at = CASE
            WHEN held.outcome = 'RETURNED' AND run.attempts = 1 THEN NULL
            ELSE run.started_at
        END,
        last_attempted_at = CASE
            WHEN held.outcome = 'RETURNED' AND run.attempts = 1 THEN NULL
            ELSE run.last_attempted_at
        END,
        attempts = run.attempts - (held.outcome = 'RETURNED')::int,
        failures = run.failures + (held.outcome IN ('FAILED', 'TIMED_OUT'))::int,
        crashes = run.crashes + (held.outcome = 'CRASHED')::int,
        losses = run.losses + (held.outcome = 'LOST')::int,
        refused_at = CASE WHEN held.refused THEN COALESCE(run.refused_at, statement_timestamp()) END,
        result = held.result,
        result_signature = held.result_signature,
        -- A cancelled run keeps the reason that the cancel gave.
        reason = CASE WHEN held.cancelled THEN run.reason ELSE held.reason END
    FROM held
    WHERE run.id = held.id
    RETURNING
        run.id,
        run.state
),
written AS (
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
        held.token,
        held.id,
        held.attempts,
        held.outcome,
        held.worker,
        held.executor,
        statement_timestamp() - make_interval(secs => held.duration),
        statement_timestamp(),
        held.error_class,
        held.error_message,
        held.traceback,
        held.output,
        held.log_ref,
        held.peak_memory
    FROM held
)
SELECT
    held.token,
    moved.state
FROM held
JOIN moved ON moved.id = held.id
