-- Edges whose gate does not know how the precondition stands: it ended, was reopened, or was reopened and ended
-- otherwise before anybody told of the former. As many as are asked for, in no order, so that of very many the
-- others are not read: those that are told are elsewhere in the index.
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
    run.id IN (SELECT value FROM json_each(%(ids)s))
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
    run.id IN (SELECT value FROM json_each(%(ids)s))
    AND edge.told
    AND run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
    AND edge.met = (run.state <> 'SUCCESSFUL')
LIMIT %(limit)s
