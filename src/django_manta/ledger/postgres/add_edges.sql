-- New edges. One that is there already adds nothing.
INSERT INTO manta_dependency (run_id, on_id, role)
SELECT
    edge.run_id,
    edge.on_id,
    edge.role
FROM json_to_recordset(%(edges)s::json) AS edge (run_id uuid, on_id uuid, role text)
ON CONFLICT DO NOTHING
