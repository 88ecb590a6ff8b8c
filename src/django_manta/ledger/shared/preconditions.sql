-- What a run waits or waited for: what ended badly, what has not ended (before it or after it), then the rest.
SELECT
    edge.run_id,
    edge.on_id,
    edge.role,
    edge.told,
    edge.met
FROM manta_dependency AS edge
LEFT JOIN manta_run AS precondition ON precondition.id = edge.on_id
WHERE edge.run_id = %(id)s
ORDER BY
    CASE
        WHEN precondition.state = 'SUCCESSFUL' THEN 3
        WHEN precondition.finished_at IS NULL THEN %(unfinished)s
        ELSE 1
    END,
    precondition.finished_at,
    edge.id
LIMIT %(limit)s
