-- Mark what the gates are about to count.
UPDATE manta_dependency AS edge
SET
    told = news.told,
    met = news.met
FROM json_to_recordset(%(edges)s::json) AS news (id bigint, told boolean, met boolean)
WHERE edge.id = news.id
