-- Tell gates of preconditions that they do not know the standing of: those that ended, were reopened, or were
-- reopened and ended otherwise before anybody told of the former. As many edges as are asked for, in no order, so that
-- of very many the others are not read: those that are told are elsewhere in the index.
--
-- Who is held by somebody learns of it later. In one statement, because a settlement may have hundreds of edges, and
-- of one gate: they are marked and summed up where they are.
WITH news AS MATERIALIZED (
    SELECT
        edge.id,
        edge.run_id,
        edge.role = 'after' AS is_after,
        run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') AS ended,
        run.state = 'SUCCESSFUL' AS succeeded,
        edge.told,
        edge.met,
        edge.called
    FROM manta_run AS run
    -- A limit each, so that there is but one way to find them: in a small table the planner would read all edges.
    CROSS JOIN LATERAL (
        SELECT edge.* FROM manta_dependency AS edge
        WHERE edge.on_id = run.id AND edge.told = (run.state NOT IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
        LIMIT %(limit)s
    ) AS edge
    WHERE run.id = ANY(%(ids)s::uuid[])
    UNION ALL
    SELECT
        edge.id,
        edge.run_id,
        edge.role = 'after' AS is_after,
        true AS ended,
        run.state = 'SUCCESSFUL' AS succeeded,
        edge.told,
        edge.met,
        edge.called
    FROM manta_run AS run
    CROSS JOIN LATERAL (
        SELECT edge.* FROM manta_dependency AS edge
        WHERE edge.on_id = run.id AND edge.told AND edge.met = (run.state <> 'SUCCESSFUL')
        LIMIT %(limit)s
    ) AS edge
    WHERE
        run.id = ANY(%(ids)s::uuid[])
        AND run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
    LIMIT %(limit)s
),
dependents AS MATERIALIZED (
    SELECT dependent.id
    FROM manta_run AS dependent
    -- An array, not a join: misjudging how many there are, the planner would read the whole table.
    WHERE dependent.id = ANY(ARRAY(SELECT DISTINCT news.run_id FROM news))
    -- In one order everywhere, so that two batches cannot wait for each other in a circle.
    ORDER BY dependent.id
    FOR NO KEY UPDATE SKIP LOCKED
),
present AS MATERIALIZED (
    SELECT dependent.id
    FROM manta_run AS dependent
    WHERE dependent.id = ANY(ARRAY(SELECT DISTINCT news.run_id FROM news))
),
free AS MATERIALIZED (
    SELECT news.*
    FROM news
    WHERE
        news.run_id IN (SELECT dependents.id FROM dependents)
        OR news.run_id NOT IN (SELECT present.id FROM present)
),
marked AS (
    UPDATE manta_dependency AS edge
    SET
        (told, met) = (
            SELECT
                run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'),
                run.state = 'SUCCESSFUL'
            FROM manta_run AS run
            WHERE run.id = edge.on_id
        ),
        -- What ended, was reopened and ends again is a reason to be called again.
        called = false
    WHERE edge.id = ANY(ARRAY(SELECT free.id FROM free))
),
-- An edge goes from the pending ones to the met or bad ones, or back.
sums AS MATERIALIZED (
    SELECT
        free.run_id,
        count(*) FILTER (WHERE NOT free.is_after AND NOT free.ended)
            - count(*) FILTER (WHERE NOT free.is_after AND NOT free.told) AS pending_values,
        count(*) FILTER (WHERE NOT free.is_after AND free.ended AND NOT free.succeeded)
            - count(*) FILTER (WHERE NOT free.is_after AND free.told AND NOT free.met) AS bad_values,
        count(*) FILTER (WHERE free.is_after AND NOT free.ended)
            - count(*) FILTER (WHERE free.is_after AND NOT free.told) AS pending_after,
        count(*) FILTER (WHERE free.is_after AND free.succeeded)
            - count(*) FILTER (WHERE free.is_after AND free.met) AS met_after,
        count(*) FILTER (WHERE free.is_after AND free.ended AND NOT free.succeeded)
            - count(*) FILTER (WHERE free.is_after AND free.told AND NOT free.met) AS bad_after,
        count(*) FILTER (WHERE free.called) AS called
    FROM free
    GROUP BY free.run_id
),
-- A gate that is not armed yet counts when it is.
gates AS MATERIALIZED (
    SELECT gate.run_id
    FROM manta_gate AS gate
    WHERE gate.run_id = ANY(ARRAY(SELECT sums.run_id FROM sums)) AND gate.armed
    ORDER BY gate.run_id
    FOR NO KEY UPDATE
),
counted AS (
    UPDATE manta_gate AS gate
    SET
        pending_values = LEAST(GREATEST(gate.pending_values + sums.pending_values, -999999999), 999999999),
        bad_values = LEAST(GREATEST(gate.bad_values + sums.bad_values, -999999999), 999999999),
        pending_after = LEAST(GREATEST(gate.pending_after + sums.pending_after, -999999999), 999999999),
        met_after = LEAST(GREATEST(gate.met_after + sums.met_after, -999999999), 999999999),
        bad_after = LEAST(GREATEST(gate.bad_after + sums.bad_after, -999999999), 999999999),
        consumed = LEAST(GREATEST(gate.consumed - sums.called, -999999999), 999999999)
    FROM sums
    WHERE gate.run_id = sums.run_id AND gate.run_id = ANY(ARRAY(SELECT gates.run_id FROM gates))
    RETURNING
        gate.run_id,
        -- As long as a value is missing, and nothing has gone wrong, nothing moves.
        gate.pending_values > 0 AND gate.bad_values = 0 AND gate.bad_after = 0 AS waits,
        gate.mode = 'all_successful'
        AND gate.pending_values = 0
        AND gate.bad_values = 0
        AND gate.pending_after = 0
        AND gate.bad_after = 0 AS open
),
-- Most runs have waited for all, all of it went well, and nothing else is to be judged: these pass at once, as
-- pass_gates.sql would let them. It sees to the others.
passed AS (
    UPDATE manta_run AS run
    SET
        state = CASE WHEN run.due_at > statement_timestamp() THEN 'SCHEDULED' ELSE 'READY' END,
        due_at = CASE WHEN run.due_at > statement_timestamp() THEN run.due_at END
    WHERE
        run.id = ANY(ARRAY(SELECT counted.run_id FROM counted WHERE counted.open))
        AND run.state = 'WAITING'
        AND run.delegate IS NULL
    RETURNING
        run.id,
        run.state,
        run.queue
),
-- Where nothing was left over, nothing is left to be told of these: nobody else can move them meanwhile.
hushed AS (
    DELETE FROM manta_herald AS herald
    WHERE
        herald.run_id = ANY(%(ids)s::uuid[])
        AND (SELECT count(*) FROM news) < %(limit)s
        AND (SELECT count(*) FROM news) = (SELECT count(*) FROM free)
    RETURNING herald.run_id
)
SELECT
    (SELECT count(*) FROM news) AS found,
    (SELECT count(*) FROM free) AS told,
    (SELECT count(*) FROM hushed) AS hushed,
    COALESCE((SELECT bool_or(free.told) FROM free), false) AS reopening,
    ARRAY(
        SELECT counted.run_id
        FROM counted
        WHERE
            (NOT counted.waits OR (SELECT bool_or(free.told) FROM free))
            AND counted.run_id NOT IN (SELECT passed.id FROM passed)
    ) AS dependents,
    ARRAY(SELECT DISTINCT free.run_id FROM free WHERE NOT free.ended) AS again,
    -- Each in the order in which they passed.
    ARRAY(SELECT passed.id FROM passed) AS passed,
    ARRAY(SELECT passed.state FROM passed) AS states,
    ARRAY(SELECT passed.queue FROM passed) AS queues
