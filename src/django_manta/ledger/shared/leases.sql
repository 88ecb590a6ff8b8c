-- The leases in force, as last renewed.
SELECT
    id,
    seen_at
FROM manta_worker
WHERE lost_at IS NULL
