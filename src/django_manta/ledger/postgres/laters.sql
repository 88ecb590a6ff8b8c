-- How often runs asked to be called again.
SELECT
    gate.run_id,
    gate.laters
FROM manta_gate AS gate
WHERE gate.run_id = ANY(%(ids)s::uuid[]) AND gate.laters > 0
