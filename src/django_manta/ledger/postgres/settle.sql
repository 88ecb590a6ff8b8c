-- Settle a batch of executions: move each run, append its attempt. Zero rows mean "no longer mine".
--
-- Rows are found by primary key and token only (DESIGN: a condition on the state would walk the
-- partial index of running rows and its dead entries). Rows that somebody holds are passed over,
-- for the caller to try again: a settlement waits for nobody and deadlocks with nobody. Texts that are
-- empty, as most are, do not travel; nor does what is the same for all that went well.
--
-- A row is moved by its place, where it was found and locked a moment ago: by its key, a plan that was made for an empty
-- table would look for it from end to end. Whose row somebody moved in that moment is not at that place in what this
-- statement sees: nothing is written then, and the caller tries again.
WITH held AS MATERIALIZED (
    SELECT
        run.place,
        run.worker,
        run.attempts,
        run.state = 'CANCELLING' AND COALESCE(incoming.outcome, 'SUCCESSFUL') <> 'SUCCESSFUL' AS cancelled,
        COALESCE(incoming.outcome, 'SUCCESSFUL') AS outcome,
        COALESCE(incoming.next_state, 'SUCCESSFUL') AS next_state,
        incoming.refused,
        COALESCE(incoming.suspect, false) AS suspect,
        incoming.token,
        incoming.delay,
        incoming.duration,
        incoming.result,
        incoming.result_signature,
        incoming.delegate,
        incoming.reason,
        incoming.executor,
        incoming.error_class,
        incoming.error_message,
        incoming.traceback,
        incoming.output,
        incoming.log_ref,
        incoming.peak_memory
    FROM json_to_recordset(%(settlements)s::json) AS incoming (
        run_id uuid,
        token bigint,
        outcome text,
        next_state text,
        delay double precision,
        duration double precision,
        result text,
        result_signature text,
        delegate text,
        reason text,
        executor text,
        error_class text,
        error_message text,
        traceback text,
        output text,
        log_ref text,
        peak_memory bigint,
        refused boolean,
        suspect boolean
    )
    CROSS JOIN LATERAL (
        SELECT
            run.ctid AS place,
            run.id,
            run.worker,
            run.attempts,
            run.state
        FROM manta_run AS run
        WHERE
            run.id = incoming.run_id
            AND run.token = incoming.token
            AND (
                %(worker)s::text IS NULL
                OR (
                    run.worker = %(worker)s
                    -- A worker that lost its lease can change nothing, also before what it held was recovered.
                    AND (
                        %(recovering)s::boolean
                        OR NOT EXISTS (
                            SELECT FROM manta_worker AS worker
                            WHERE worker.id = %(worker)s AND worker.lost_at IS NOT NULL
                        )
                    )
                )
            )
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS run
    -- Always true, and says to the planner that few are held: otherwise it would rather read a small table from end to
    -- end than go to so many places.
    WHERE run.id = incoming.run_id
),
moved AS (
    UPDATE manta_run AS run
    SET
        state = CASE WHEN held.cancelled THEN 'CANCELLED' ELSE held.next_state END,
        token = NULL,
        worker = '',
        due_at = CASE
            WHEN NOT held.cancelled AND held.next_state IN ('SCHEDULED', 'WAITING')
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
            -- What never started was no attempt: the latest one is the one before it.
            WHEN held.outcome = 'RETURNED' THEN (
                SELECT max(attempt.started_at) FROM manta_attempt AS attempt
                WHERE attempt.run_id = run.id AND attempt.outcome <> 'RETURNED'
            )
            ELSE run.last_attempted_at
        END,
        attempts = run.attempts - (held.outcome = 'RETURNED')::int,
        failures = LEAST(run.failures, 999999) + (held.outcome IN ('FAILED', 'TIMED_OUT'))::int,
        -- What died in company is not charged: it is suspected, and travels alone next time.
        crashes = LEAST(run.crashes, 999999) + (held.outcome = 'CRASHED' AND NOT held.suspect)::int,
        losses = LEAST(run.losses, 999999) + (held.outcome = 'LOST' AND NOT held.suspect)::int,
        -- Only an end of its own clears a suspect.
        suspect = held.suspect OR (run.suspect AND held.outcome NOT IN ('SUCCESSFUL', 'FAILED', 'TIMED_OUT')),
        refused_at = CASE WHEN held.refused THEN COALESCE(run.refused_at, statement_timestamp()) END,
        result = held.result,
        result_signature = COALESCE(held.result_signature, ''),
        delegate = CASE WHEN NOT held.cancelled THEN held.delegate END,
        -- A cancelled run keeps the reason that the cancel gave.
        reason = CASE WHEN held.cancelled THEN run.reason ELSE COALESCE(held.reason, '') END
    FROM held
    WHERE run.ctid = held.place
    RETURNING
        run.id,
        run.state,
        run.dependents AND run.finished_at IS NOT NULL AS herald,
        held.token,
        held.attempts,
        held.worker,
        held.outcome,
        held.duration,
        held.executor,
        held.error_class,
        held.error_message,
        held.traceback,
        held.output,
        held.log_ref,
        held.peak_memory
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
        moved.token,
        moved.id,
        moved.attempts,
        moved.outcome,
        moved.worker,
        COALESCE(moved.executor, ''),
        statement_timestamp() - make_interval(secs => moved.duration),
        statement_timestamp(),
        COALESCE(moved.error_class, ''),
        COALESCE(moved.error_message, ''),
        COALESCE(moved.traceback, ''),
        COALESCE(moved.output, ''),
        COALESCE(moved.log_ref, ''),
        moved.peak_memory
    FROM moved
),
heralds AS (
    -- Whoever waits for one of them is told next; if whoever should tell dies first, somebody else does. Quietly: those
    -- who wait for a good end are told in the same transaction (tell_own.sql).
    INSERT INTO manta_herald (run_id)
    SELECT moved.id FROM moved
    WHERE moved.herald AND NOT (%(quietly)s::boolean AND moved.state = 'SUCCESSFUL')
    ON CONFLICT DO NOTHING
)
SELECT
    moved.token,
    moved.state,
    moved.herald,
    moved.id
FROM moved
