-- Edges whose gate does not know how the precondition stands: it ended, was reopened, or was reopened and ended
-- otherwise before anybody told of the former. As many as are asked for, in no order, so that of very many the
-- others are not read: those that are told are elsewhere in the index.
--
-- Whether each dependent could be locked is told along: who is held by somebody learns of it later.
WITH news AS MATERIALIZED (
    SELECT
        edge.id,
        edge.run_id,
        edge.role,
        run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') AS ended,
        run.state = 'SUCCESSFUL' AS succeeded,
        edge.told,
        edge.met,
        edge.called
    FROM manta_run AS run
    JOIN manta_dependency AS edge ON edge.on_id = run.id
    WHERE
        run.id = ANY(%(ids)s::uuid[])
        AND edge.told = (run.state NOT IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
    UNION ALL
    SELECT
        edge.id,
        edge.run_id,
        edge.role,
        run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED') AS ended,
        run.state = 'SUCCESSFUL' AS succeeded,
        edge.told,
        edge.met,
        edge.called
    FROM manta_run AS run
    JOIN manta_dependency AS edge ON edge.on_id = run.id
    WHERE
        run.id = ANY(%(ids)s::uuid[])
        AND edge.told
        AND run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
        AND edge.met = (run.state <> 'SUCCESSFUL')
    LIMIT %(limit)s
)
SELECT
    news.*,
    mine.id IS NOT NULL OR NOT EXISTS (SELECT FROM manta_run AS dependent WHERE dependent.id = news.run_id) AS free
-- In one order everywhere, so that two batches cannot wait for each other in a circle.
FROM (SELECT news.* FROM news ORDER BY news.run_id, news.id) AS news
LEFT JOIN LATERAL (
    SELECT dependent.id
    FROM manta_run AS dependent
    WHERE dependent.id = news.run_id
    FOR NO KEY UPDATE SKIP LOCKED
) AS mine ON true
