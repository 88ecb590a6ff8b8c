-- Edges whose gate does not know how the precondition stands: it ended, was reopened, or was reopened and ended
-- well before anybody told of the former.
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
    AND (
        edge.told <> (run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'))
        OR edge.met <> (run.state = 'SUCCESSFUL')
    )
ORDER BY
    edge.run_id,
    edge.id
LIMIT %(limit)s
