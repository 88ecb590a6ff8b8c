-- Gates for runs that wait for others. One that exists is unarmed: its edges are to be counted anew.
INSERT INTO manta_gate (run_id, mode, passed, laters)
SELECT
    json_extract(gate.value, '$.run_id'),
    COALESCE(json_extract(gate.value, '$.mode'), 'all_successful'),
    json_extract(gate.value, '$.passed'),
    json_extract(gate.value, '$.laters')
FROM json_each(%(gates)s) AS gate
WHERE true
ON CONFLICT (run_id) DO UPDATE SET
    armed = false,
    passed = excluded.passed,
    laters = MIN(manta_gate.laters, 999999999) + excluded.laters,
    made_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
