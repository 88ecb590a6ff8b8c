-- Settle a promise from outside: an open one only, and once.
WITH moved AS (
    UPDATE manta_run AS run
    SET
        state = %(state)s,
        finished_at = statement_timestamp(),
        result = %(result)s,
        result_signature = %(signature)s,
        reason = %(reason)s
    WHERE run.id = %(id)s::uuid AND run.task = %(task)s AND run.state IN ('WAITING', 'HELD')
    RETURNING
        run.id,
        run.state,
        run.dependents
),
closed AS (
    UPDATE manta_promise AS promise
    SET open = false
    FROM moved
    WHERE promise.run_id = moved.id
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
