-- Count the edges of runs into their gates, and arm them; unless there is one to a run that was not locked, because it
-- was added a moment ago: whoever added it arms them, or the caretaker.
WITH counted AS (
    SELECT
        listed.run_id,
        tally.*
    FROM unnest(%(ids)s::uuid[]) AS listed (run_id)
    CROSS JOIN LATERAL (
        SELECT
            count(*) FILTER (WHERE edge.role <> 'after' AND NOT edge.told) AS pending_values,
            count(*) FILTER (WHERE edge.role <> 'after' AND edge.told AND NOT edge.met) AS bad_values,
            count(*) FILTER (WHERE edge.role = 'after' AND NOT edge.told) AS pending_after,
            count(*) FILTER (WHERE edge.role = 'after' AND edge.met) AS met_after,
            count(*) FILTER (WHERE edge.role = 'after' AND edge.told AND NOT edge.met) AS bad_after,
            count(*) FILTER (WHERE edge.called) AS consumed
        FROM manta_dependency AS edge
        WHERE edge.run_id = listed.run_id
    ) AS tally
)
UPDATE manta_gate AS gate
SET
    armed = NOT EXISTS (
        SELECT
        FROM manta_dependency AS edge
        WHERE
            edge.run_id = gate.run_id
            -- Not the operator of arrays, which would walk through all of a long one for each.
            AND edge.on_id NOT IN (SELECT unnest(%(locked)s::uuid[]))
            AND EXISTS (SELECT FROM manta_run AS precondition WHERE precondition.id = edge.on_id)
    ),
    pending_values = counted.pending_values,
    bad_values = counted.bad_values,
    pending_after = counted.pending_after,
    met_after = counted.met_after,
    bad_after = counted.bad_after,
    consumed = counted.consumed
FROM counted
WHERE gate.run_id = counted.run_id
RETURNING gate.run_id
