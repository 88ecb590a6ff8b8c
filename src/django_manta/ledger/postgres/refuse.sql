-- End runs that asked to wait for something that waits for them.
WITH moved AS (
    UPDATE manta_run AS run
    SET
        state = 'FAILED',
        due_at = NULL,
        finished_at = statement_timestamp(),
        result_signature = '',
        delegate = NULL,
        reason = refused.reason
    FROM json_to_recordset(%(refused)s::json) AS refused (run_id uuid, reason text)
    WHERE run.id = refused.run_id AND run.state IN ('WAITING', 'HELD')
    RETURNING
        run.id,
        run.state,
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
    moved.state,
    moved.dependents
FROM moved
