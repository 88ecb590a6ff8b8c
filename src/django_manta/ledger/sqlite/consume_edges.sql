-- The preconditions that a run is called for count once, where any will do.
UPDATE manta_dependency
SET called = true
FROM manta_gate AS gate
WHERE
    manta_dependency.run_id IN (SELECT value FROM json_each(%(ids)s))
    AND gate.run_id = manta_dependency.run_id
    AND gate.mode IN ('any_successful', 'any_finished')
    AND manta_dependency.role = 'after'
    AND (manta_dependency.met OR (manta_dependency.told AND gate.mode = 'any_finished'))
    AND NOT manta_dependency.called
