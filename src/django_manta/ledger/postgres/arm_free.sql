-- As arm_lock.sql, but waits for nobody: locks runs and what they wait for, as far as nobody else holds it. Which are
-- locked; and which of the runs are to be left, because somebody holds them, or something that they wait for.
WITH wanted AS MATERIALIZED (
    SELECT
        edge.run_id,
        edge.on_id
    FROM manta_dependency AS edge
    WHERE edge.run_id = ANY(%(ids)s::uuid[])
    UNION ALL
    SELECT
        listed.id,
        listed.id
    FROM unnest(%(ids)s::uuid[]) AS listed (id)
),
locked AS MATERIALIZED (
    SELECT run.id
    FROM manta_run AS run
    -- An array, not a join: misjudging how many there are, the planner would read the whole table.
    WHERE run.id = ANY(ARRAY(SELECT DISTINCT wanted.on_id FROM wanted))
    ORDER BY run.id
    FOR NO KEY UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    -- What is gone is held by nobody.
    SELECT run.id
    FROM manta_run AS run
    WHERE
        run.id = ANY(ARRAY(SELECT DISTINCT wanted.on_id FROM wanted))
        AND run.id NOT IN (SELECT locked.id FROM locked)
)
SELECT
    locked.id,
    false
FROM locked
UNION ALL
SELECT DISTINCT
    wanted.run_id,
    true
FROM wanted
WHERE wanted.on_id IN (SELECT held.id FROM held)
