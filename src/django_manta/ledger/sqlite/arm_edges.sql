-- Mark what the gates of runs are about to count. A precondition that is gone cannot be met any more, unless it was;
-- and a value that is gone cannot be given any more.
UPDATE manta_dependency
SET
    told = known.told,
    met = known.met,
    called = false
FROM (
    SELECT
        mine.id,
        COALESCE(run.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'), true) AS told,
        COALESCE(run.state = 'SUCCESSFUL', mine.role <> 'value' AND mine.told AND mine.met) AS met
    FROM manta_dependency AS mine
    LEFT JOIN manta_run AS run ON run.id = mine.on_id
    WHERE mine.run_id IN (SELECT value FROM json_each(%(ids)s))
) AS known
WHERE manta_dependency.id = known.id AND (manta_dependency.told <> known.told OR manta_dependency.met <> known.met)
