-- Count the edges of runs into their gates, and arm them, in the transaction that has enqueued all that they wait for:
-- nobody else can see those, and so nobody has to be kept from moving them. Left out are those that wait for something
-- that is over already.
WITH edges AS MATERIALIZED (
    SELECT
        edge.run_id,
        edge.on_id,
        edge.role
    FROM manta_dependency AS edge
    WHERE edge.run_id = ANY(%(ids)s::uuid[])
),
under_way AS MATERIALIZED (
    SELECT run.id
    FROM manta_run AS run
    -- An array, not a join: misjudging how many there are, the planner would read the whole table.
    WHERE
        run.id = ANY(ARRAY(SELECT DISTINCT edges.on_id FROM edges))
        AND run.state NOT IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
),
counted AS MATERIALIZED (
    SELECT
        edges.run_id,
        count(*) FILTER (WHERE edges.role <> 'after') AS pending_values,
        count(*) FILTER (WHERE edges.role = 'after') AS pending_after
    FROM edges
    GROUP BY edges.run_id
    HAVING bool_and(edges.on_id IN (SELECT under_way.id FROM under_way))
),
flagged AS (
    UPDATE manta_run AS run
    SET dependents = true
    WHERE run.id = ANY(ARRAY(SELECT under_way.id FROM under_way)) AND NOT run.dependents
)
UPDATE manta_gate AS gate
SET
    armed = true,
    pending_values = counted.pending_values,
    pending_after = counted.pending_after
FROM counted
WHERE gate.run_id = counted.run_id AND NOT gate.armed
RETURNING gate.run_id
