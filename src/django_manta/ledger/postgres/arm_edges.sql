-- Mark what the gates of runs are about to count. A precondition that is gone cannot be met any more, unless it was;
-- and a value that is gone cannot be given any more.
--
-- Each precondition is looked up by its key: of a join the planner makes a walk through all edges when many are new.
WITH news AS MATERIALIZED (
    SELECT edge.id
    FROM manta_dependency AS edge
    LEFT JOIN LATERAL (
        SELECT run.state
        FROM manta_run AS run
        WHERE run.id = edge.on_id
        -- So that it stays a look for each.
        LIMIT 1
    ) AS precondition ON true
    WHERE
        edge.run_id = ANY(%(ids)s::uuid[])
        AND (
            edge.told <> COALESCE(precondition.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'), true)
            OR edge.met <> COALESCE(precondition.state = 'SUCCESSFUL', edge.role <> 'value' AND edge.told AND edge.met)
        )
)
UPDATE manta_dependency AS edge
SET
    told = COALESCE((SELECT run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') FROM manta_run AS run WHERE run.id = edge.on_id), true),
    met = COALESCE((SELECT run.state = 'SUCCESSFUL' FROM manta_run AS run WHERE run.id = edge.on_id), edge.role <> 'value' AND edge.told AND edge.met),
    called = false
WHERE edge.id = ANY(ARRAY(SELECT news.id FROM news))
