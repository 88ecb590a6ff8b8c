-- The workers that nobody has declared lost, by their clusters.
SELECT
    id,
    cluster,
    seen_at,
    lease_seconds
FROM manta_worker
WHERE lost_at IS NULL
ORDER BY id
