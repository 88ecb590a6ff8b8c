-- Remove edges that would have closed a circle.
DELETE FROM manta_dependency AS edge
USING json_to_recordset(%(edges)s::json) AS closing (run_id uuid, on_id uuid)
WHERE edge.run_id = closing.run_id AND edge.on_id = closing.on_id
