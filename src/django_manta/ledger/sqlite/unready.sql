-- Before runs are held: those that are ready have not been called for what made them so.
UPDATE manta_dependency
SET called = false
WHERE
    called
    AND run_id IN (
        SELECT run.id
        FROM manta_run AS run
        WHERE run.id IN (SELECT value FROM json_each(%(ids)s)) AND run.state IN ('READY', 'SCHEDULED')
    )
