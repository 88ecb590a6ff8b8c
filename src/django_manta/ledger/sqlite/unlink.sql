-- Remove edges that would have closed a circle.
DELETE FROM manta_dependency
WHERE (run_id, on_id) IN (
    SELECT
        json_extract(closing.value, '$.run_id'),
        json_extract(closing.value, '$.on_id')
    FROM json_each(%(edges)s) AS closing
)
