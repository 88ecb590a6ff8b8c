-- The fingerprint of the key this cluster signs with.
SELECT key_fingerprint
FROM manta_cluster
WHERE name = %(cluster)s
