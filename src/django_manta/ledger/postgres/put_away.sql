-- End a run whose row cannot be moved or read as it is, and give its columns values that can be.
WITH moved AS (
    UPDATE manta_run AS run
    SET
        state = 'FAILED',
        reason = %(reason)s,
        token = NULL,
        worker = '',
        due_at = NULL,
        finished_at = statement_timestamp(),
        refused_at = NULL,
        result = NULL,
        result_signature = '',
        delegate = NULL,
        attempts = (
            SELECT count(*) FROM manta_attempt AS attempt
            WHERE attempt.run_id = run.id AND attempt.outcome <> 'RETURNED'
        ),
        failures = LEAST(GREATEST(run.failures, 0), 999999),
        crashes = LEAST(GREATEST(run.crashes, 0), 999999),
        losses = LEAST(GREATEST(run.losses, 0), 999999),
        enqueued_at = LEAST(GREATEST(run.enqueued_at, '1970-01-01Z'), '9999-12-31Z'),
        deadline = LEAST(GREATEST(run.deadline, '1970-01-01Z'), '9999-12-31Z'),
        run_after = CASE WHEN run.run_after IS NOT NULL THEN LEAST(GREATEST(run.run_after, '1970-01-01Z'), '9999-12-31Z') END,
        expires_at = CASE WHEN run.expires_at IS NOT NULL THEN LEAST(GREATEST(run.expires_at, '1970-01-01Z'), '9999-12-31Z') END,
        started_at = CASE WHEN run.started_at IS NOT NULL THEN LEAST(GREATEST(run.started_at, '1970-01-01Z'), '9999-12-31Z') END,
        last_attempted_at = CASE
            WHEN run.last_attempted_at IS NOT NULL THEN LEAST(GREATEST(run.last_attempted_at, '1970-01-01Z'), '9999-12-31Z')
        END
    WHERE
        run.id = %(id)s::uuid
        AND (run.state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY') OR run.worker = %(worker)s AND run.worker <> '')
    RETURNING
        run.id,
        run.dependents
),
heralds AS (
    INSERT INTO manta_herald (run_id)
    SELECT moved.id FROM moved
    WHERE moved.dependents
    ON CONFLICT DO NOTHING
)
SELECT
    moved.id,
    moved.dependents
FROM moved
