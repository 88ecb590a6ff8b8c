-- fsck --repair: gate-without-run.
DELETE FROM manta_gate
WHERE
    run_id IN (SELECT value FROM json_each(%(ids)s))
    AND NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = manta_gate.run_id)
RETURNING run_id
