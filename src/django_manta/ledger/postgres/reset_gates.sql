-- An operator's retry: what the runs waited for counts anew, and their budget of Laters is fresh.
UPDATE manta_gate
SET
    armed = false,
    passed = false,
    consumed = 0,
    laters = 0
WHERE run_id = ANY(%(ids)s::uuid[])
