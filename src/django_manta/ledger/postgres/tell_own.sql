-- Tell those who wait for these runs that they ended well, in the transaction that has moved them (quietly, see
-- settle.sql). It knows its own rows, and nobody else can move them: so this can be sent before anybody has read which
-- of them the settlement has moved.
--
-- What tell.sql does, for few edges and the ordinary case: who waits, for all, of which nothing went wrong, and is held by
-- nobody. To set up and take down a plan for all cases takes longer than to execute it. Of whom somebody else waits, heralds
-- are left, and tell.sql tells them after the commit.
WITH these AS MATERIALIZED (
    SELECT run.id
    FROM manta_run AS run
    WHERE
        run.id = ANY(%(ids)s::uuid[])
        AND run.xmin = pg_current_xact_id_if_assigned()::xid
        AND run.state = 'SUCCESSFUL'
        AND run.dependents
),
news AS MATERIALIZED (
    SELECT edge.*
    FROM these
    -- A limit, so that there is but one way to find them: in a small table the planner would read all edges.
    CROSS JOIN LATERAL (
        SELECT
            edge.id,
            edge.run_id
        FROM manta_dependency AS edge
        WHERE edge.on_id = these.id AND NOT edge.told
        LIMIT %(limit)s
    ) AS edge
    LIMIT %(limit)s
),
-- Whoever writes to a gate holds the row of its run. The gate is held as well, so that both are looked at as they are now.
free AS MATERIALIZED (
    SELECT dependent.id
    FROM manta_run AS dependent
    JOIN manta_gate AS gate ON gate.run_id = dependent.id
    WHERE
        -- An array, not a join: misjudging how many there are, the planner would read the whole table.
        dependent.id = ANY(ARRAY(SELECT news.run_id FROM news))
        AND gate.run_id = ANY(ARRAY(SELECT news.run_id FROM news))
        AND dependent.state = 'WAITING'
        AND dependent.delegate IS NULL
        AND gate.armed
        AND gate.mode = 'all_successful'
        AND gate.bad_values = 0
        AND gate.bad_after = 0
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY dependent.id
    FOR NO KEY UPDATE SKIP LOCKED
),
marked AS (
    UPDATE manta_dependency AS edge
    SET
        told = true,
        met = true
    WHERE
        edge.id = ANY(ARRAY(SELECT news.id FROM news))
        AND edge.run_id = ANY(ARRAY(SELECT free.id FROM free))
        -- What ended, was reopened and ends again is a reason to be called again.
        AND NOT edge.called
    RETURNING
        edge.run_id,
        edge.role
),
counted AS (
    UPDATE manta_gate AS gate
    SET
        pending_values = LEAST(GREATEST(gate.pending_values - sums.met_values, -999999999), 999999999),
        pending_after = LEAST(GREATEST(gate.pending_after - sums.met_after, -999999999), 999999999),
        met_after = LEAST(GREATEST(gate.met_after + sums.met_after, -999999999), 999999999)
    FROM (
        SELECT
            marked.run_id,
            count(*) FILTER (WHERE marked.role <> 'after') AS met_values,
            count(*) FILTER (WHERE marked.role = 'after') AS met_after
        FROM marked
        GROUP BY marked.run_id
    ) AS sums
    WHERE gate.run_id = sums.run_id AND gate.run_id = ANY(ARRAY(SELECT free.id FROM free))
    RETURNING
        gate.run_id,
        gate.pending_values = 0 AND gate.pending_after = 0 AS open
),
-- As pass_gates.sql would let them.
passed AS (
    UPDATE manta_run AS run
    SET
        state = CASE WHEN run.due_at > statement_timestamp() THEN 'SCHEDULED' ELSE 'READY' END,
        due_at = CASE WHEN run.due_at > statement_timestamp() THEN run.due_at END
    WHERE run.id = ANY(ARRAY(SELECT counted.run_id FROM counted WHERE counted.open))
    RETURNING
        run.id,
        run.state,
        run.queue
),
judged AS MATERIALIZED (
    SELECT
        these.id,
        (SELECT count(*) FROM news) < %(limit)s
        AND (SELECT count(*) FROM news) = (SELECT count(*) FROM marked)
        -- It had ended otherwise before it was reopened, and nobody has told of either. (Not EXISTS, which the planner
        -- would make a join of, and read all such edges.)
        AND (
            SELECT edge.id FROM manta_dependency AS edge
            WHERE edge.on_id = these.id AND edge.told AND NOT edge.met
            LIMIT 1
        ) IS NULL AS is_told
    FROM these
),
heralds AS (
    INSERT INTO manta_herald (run_id)
    SELECT judged.id FROM judged
    WHERE NOT judged.is_told
    ON CONFLICT DO NOTHING
)
SELECT
    passed.id,
    passed.state,
    passed.queue
FROM passed
UNION ALL
SELECT
    judged.id,
    NULL,
    NULL
FROM judged
WHERE judged.is_told
