-- End what did not start in time. Runs that ever started do not expire.
WITH late AS (
    SELECT id
    FROM manta_run
    WHERE
        state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
        AND expires_at <= statement_timestamp()
        AND attempts = 0
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
moved AS (
    UPDATE manta_run AS run
    SET
        state = 'EXPIRED',
        due_at = NULL,
        finished_at = statement_timestamp(),
        reason = 'It did not start before it expired.'
    -- An array, not a join: misjudging how many there are, the planner would read the whole table.
    WHERE run.id = ANY(ARRAY(SELECT late.id FROM late))
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
