-- Mark what the gates of runs are about to count. A precondition that is gone cannot be met any more.
UPDATE manta_dependency AS edge
SET
    told = known.told,
    met = known.met,
    called = false
FROM (
    SELECT
        mine.id,
        COALESCE(run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'), true) AS told,
        COALESCE(run.state = 'SUCCESSFUL', false) AS met
    FROM manta_dependency AS mine
    LEFT JOIN manta_run AS run ON run.id = mine.on_id
    WHERE mine.run_id = ANY(%(ids)s::uuid[])
) AS known
WHERE edge.id = known.id AND (edge.told <> known.told OR edge.met <> known.met)
