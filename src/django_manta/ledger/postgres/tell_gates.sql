-- Count the news. A gate that is not armed yet counts when it is.
WITH news AS MATERIALIZED (
    SELECT told.*
    FROM json_to_recordset(%(gates)s::json) AS told (
        run_id uuid,
        pending_values integer,
        bad_values integer,
        pending_after integer,
        met_after integer,
        bad_after integer,
        consumed integer
    )
),
locked AS MATERIALIZED (
    SELECT gate.run_id
    FROM manta_gate AS gate
    JOIN news ON news.run_id = gate.run_id
    WHERE gate.armed
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY gate.run_id
    FOR NO KEY UPDATE OF gate
)
UPDATE manta_gate AS gate
SET
    pending_values = gate.pending_values + news.pending_values,
    bad_values = gate.bad_values + news.bad_values,
    pending_after = gate.pending_after + news.pending_after,
    met_after = gate.met_after + news.met_after,
    bad_after = gate.bad_after + news.bad_after,
    consumed = gate.consumed + news.consumed
FROM locked
JOIN news ON news.run_id = locked.run_id
WHERE gate.run_id = locked.run_id
RETURNING gate.run_id
