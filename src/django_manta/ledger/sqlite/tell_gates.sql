-- Count the news. A gate that is not armed yet counts when it is.
UPDATE manta_gate
SET
    pending_values = manta_gate.pending_values + news.pending_values,
    bad_values = manta_gate.bad_values + news.bad_values,
    pending_after = manta_gate.pending_after + news.pending_after,
    met_after = manta_gate.met_after + news.met_after,
    bad_after = manta_gate.bad_after + news.bad_after,
    consumed = manta_gate.consumed + news.consumed
FROM (
    SELECT
        json_extract(told.value, '$.run_id') AS run_id,
        json_extract(told.value, '$.pending_values') AS pending_values,
        json_extract(told.value, '$.bad_values') AS bad_values,
        json_extract(told.value, '$.pending_after') AS pending_after,
        json_extract(told.value, '$.met_after') AS met_after,
        json_extract(told.value, '$.bad_after') AS bad_after,
        json_extract(told.value, '$.consumed') AS consumed
    FROM json_each(%(gates)s) AS told
) AS news
WHERE manta_gate.run_id = news.run_id AND manta_gate.armed
RETURNING run_id
