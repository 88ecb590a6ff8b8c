-- Count the news. A gate that is not armed yet counts when it is.
UPDATE manta_gate
SET
    pending_values = MIN(MAX(manta_gate.pending_values + news.pending_values, -999999999), 999999999),
    bad_values = MIN(MAX(manta_gate.bad_values + news.bad_values, -999999999), 999999999),
    pending_after = MIN(MAX(manta_gate.pending_after + news.pending_after, -999999999), 999999999),
    met_after = MIN(MAX(manta_gate.met_after + news.met_after, -999999999), 999999999),
    bad_after = MIN(MAX(manta_gate.bad_after + news.bad_after, -999999999), 999999999),
    consumed = MIN(MAX(manta_gate.consumed + news.consumed, -999999999), 999999999)
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
