-- The preconditions that a run is called for count once, where any will do.
UPDATE manta_gate
SET consumed = CASE WHEN mode = 'any_successful' THEN met_after ELSE MIN(met_after + bad_after, 999999999) END
WHERE run_id IN (SELECT value FROM json_each(%(ids)s)) AND mode IN ('any_successful', 'any_finished')
