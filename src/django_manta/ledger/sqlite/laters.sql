-- How often runs asked to be called again.
SELECT
    gate.run_id,
    gate.laters
FROM manta_gate AS gate
WHERE gate.run_id IN (SELECT value FROM json_each(%(ids)s)) AND gate.laters > 0
