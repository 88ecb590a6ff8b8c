-- Who waits for others is to be asked anew, when somebody can.
UPDATE manta_gate
SET armed = false
WHERE run_id = ANY(%(ids)s::uuid[])
