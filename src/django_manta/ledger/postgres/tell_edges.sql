-- Mark what the gates are about to count.
UPDATE manta_dependency AS edge
SET
    told = news.told,
    met = news.met,
    -- What ended, was reopened and ends again is a reason to be called again.
    called = false
FROM json_to_recordset(%(edges)s::json) AS news (id bigint, told boolean, met boolean)
WHERE edge.id = news.id
