-- Count the edges of runs into their gates, and arm them.
UPDATE manta_gate
SET
    armed = true,
    pending_values = COALESCE(counted.pending_values, 0),
    bad_values = COALESCE(counted.bad_values, 0),
    pending_after = COALESCE(counted.pending_after, 0),
    met_after = COALESCE(counted.met_after, 0),
    bad_after = COALESCE(counted.bad_after, 0),
    consumed = COALESCE(counted.consumed, 0)
FROM (
    SELECT
        listed.value AS run_id,
        tally.*
    FROM json_each(%(ids)s) AS listed
    LEFT JOIN (
        SELECT
            edge.run_id AS dependent,
            count(*) FILTER (WHERE edge.role <> 'after' AND NOT edge.told) AS pending_values,
            count(*) FILTER (WHERE edge.role <> 'after' AND edge.told AND NOT edge.met) AS bad_values,
            count(*) FILTER (WHERE edge.role = 'after' AND NOT edge.told) AS pending_after,
            count(*) FILTER (WHERE edge.role = 'after' AND edge.met) AS met_after,
            count(*) FILTER (WHERE edge.role = 'after' AND edge.told AND NOT edge.met) AS bad_after,
            count(*) FILTER (WHERE edge.called) AS consumed
        FROM manta_dependency AS edge
        WHERE edge.run_id IN (SELECT value FROM json_each(%(ids)s))
        GROUP BY edge.run_id
    ) AS tally ON tally.dependent = listed.value
) AS counted
WHERE manta_gate.run_id = counted.run_id
RETURNING run_id
