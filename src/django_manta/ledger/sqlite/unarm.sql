-- Who waits for others is to be asked anew, when somebody can.
UPDATE manta_gate
SET armed = false
WHERE run_id IN (SELECT value FROM json_each(%(ids)s))
