-- Mark what the gates are about to count.
UPDATE manta_dependency
SET
    told = news.told,
    met = news.met,
    -- What ended, was reopened and ends again is a reason to be called again.
    called = false
FROM (
    SELECT
        json_extract(one.value, '$.id') AS id,
        json_extract(one.value, '$.told') AS told,
        json_extract(one.value, '$.met') AS met
    FROM json_each(%(edges)s) AS one
) AS news
WHERE manta_dependency.id = news.id
