-- The clusters that the database knows, and the fingerprints of the keys that they sign with.
SELECT
    name,
    key_fingerprint
FROM manta_cluster
ORDER BY name
