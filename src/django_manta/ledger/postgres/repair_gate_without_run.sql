-- fsck --repair: gate-without-run.
DELETE FROM manta_gate
WHERE
    run_id = ANY(%(ids)s::uuid[])
    AND NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = manta_gate.run_id)
RETURNING run_id
