-- Mark edges whose gate does not know how the precondition stands: it ended, or was reopened. What changes in each
-- gate: an edge goes from the pending ones to the met or bad ones, or back.
--
-- As many edges as are asked for, in no order, so that of very many the others are not read: those that are told are
-- elsewhere in the index.
WITH news AS MATERIALIZED (
    SELECT
        edge.id,
        edge.run_id,
        edge.role = 'after' AS is_after,
        edge.told AS reopened,
        CASE WHEN edge.told THEN edge.met ELSE run.state = 'SUCCESSFUL' END AS met,
        CASE WHEN edge.told THEN -1 ELSE 1 END AS step
    FROM manta_run AS run
    JOIN manta_dependency AS edge ON edge.on_id = run.id
    WHERE
        run.id = ANY(%(ids)s::uuid[])
        AND edge.told = (run.state NOT IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
    LIMIT %(limit)s
),
marked AS (
    UPDATE manta_dependency AS edge
    SET
        told = NOT edge.told,
        met = COALESCE((SELECT run.state = 'SUCCESSFUL' FROM manta_run AS run WHERE run.id = edge.on_id), false)
    -- Through an array, and so by primary key.
    WHERE edge.id = ANY(ARRAY(SELECT news.id FROM news))
)
SELECT
    news.run_id,
    COALESCE(-sum(news.step) FILTER (WHERE NOT news.is_after), 0) AS pending_values,
    COALESCE(sum(news.step) FILTER (WHERE NOT news.is_after AND NOT news.met), 0) AS bad_values,
    COALESCE(-sum(news.step) FILTER (WHERE news.is_after), 0) AS pending_after,
    COALESCE(sum(news.step) FILTER (WHERE news.is_after AND news.met), 0) AS met_after,
    COALESCE(sum(news.step) FILTER (WHERE news.is_after AND NOT news.met), 0) AS bad_after,
    count(*) AS edges,
    bool_or(news.reopened) AS reopened
FROM news
GROUP BY news.run_id
