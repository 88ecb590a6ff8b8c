-- Gates for runs that wait for others. One that exists is unarmed: its edges are to be counted anew.
INSERT INTO manta_gate (run_id, mode, passed, laters)
SELECT
    gate.run_id,
    COALESCE(gate.mode, 'all_successful'),
    gate.passed,
    gate.laters
FROM json_to_recordset(%(gates)s::json) AS gate (run_id uuid, mode text, passed boolean, laters integer)
ON CONFLICT (run_id) DO UPDATE SET
    armed = false,
    passed = excluded.passed,
    laters = LEAST(manta_gate.laters, 999999999) + excluded.laters,
    made_at = statement_timestamp()
