-- Settle a batch of executions that went well, and of which there is nothing more to be said: settle.sql for what most
-- batches consist of. A success is never cancelled any more, counts for nothing and clears its run of everything.
--
-- A row is moved by its place, where it was found and locked a moment ago, not looked for once more. Whose row somebody
-- moved in that moment is not at that place in what this statement sees: nothing is written then, and the caller tries
-- again. That is why attempts are appended for what has moved, and only for that.
WITH held AS MATERIALIZED (
    SELECT
        run.place,
        run.worker,
        run.attempts,
        incoming.*
    FROM json_to_recordset(%(settlements)s::json) AS incoming (
        run_id uuid,
        token bigint,
        duration double precision,
        result text,
        result_signature text,
        executor text
    )
    CROSS JOIN LATERAL (
        SELECT
            run.ctid AS place,
            run.worker,
            run.attempts
        FROM manta_run AS run
        WHERE
            run.id = incoming.run_id
            AND run.token = incoming.token
            AND (
                %(worker)s::text IS NULL
                OR (
                    run.worker = %(worker)s::text
                    -- A worker that lost its lease can change nothing, also before what it held was recovered.
                    AND (
                        %(recovering)s::boolean
                        OR NOT EXISTS (
                            SELECT FROM manta_worker AS worker
                            WHERE worker.id = %(worker)s::text AND worker.lost_at IS NOT NULL
                        )
                    )
                )
            )
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS run
),
moved AS (
    UPDATE manta_run AS run
    SET
        state = 'SUCCESSFUL',
        token = NULL,
        worker = '',
        due_at = NULL,
        finished_at = statement_timestamp(),
        suspect = false,
        refused_at = NULL,
        result = held.result,
        result_signature = held.result_signature,
        delegate = NULL,
        reason = ''
    FROM held
    WHERE run.ctid = held.place
    RETURNING
        run.id,
        run.dependents,
        held.token,
        held.attempts,
        held.worker,
        held.executor,
        held.duration
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
        'SUCCESSFUL',
        moved.worker,
        moved.executor,
        statement_timestamp() - make_interval(secs => moved.duration),
        statement_timestamp(),
        '',
        '',
        '',
        '',
        '',
        NULL
    FROM moved
),
heralds AS (
    -- Whoever waits for one of them is told next; if whoever should tell dies first, somebody else does. Quietly: those
    -- who wait are told in the same transaction (tell_own.sql).
    INSERT INTO manta_herald (run_id)
    SELECT moved.id FROM moved
    WHERE moved.dependents AND NOT %(quietly)s::boolean
    ON CONFLICT DO NOTHING
)
SELECT
    moved.token,
    CASE WHEN moved.dependents THEN moved.id END
FROM moved
