-- New edges. One that is there already adds nothing.
INSERT OR IGNORE INTO manta_dependency (run_id, on_id, role)
SELECT
    json_extract(edge.value, '$.run_id'),
    json_extract(edge.value, '$.on_id'),
    json_extract(edge.value, '$.role')
FROM json_each(%(edges)s) AS edge
