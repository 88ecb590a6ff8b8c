-- The cluster signs with a new key from now on; compare-and-set, so that two rotations cannot mix.
UPDATE manta_cluster
SET key_fingerprint = %(fingerprint)s
WHERE name = %(cluster)s AND key_fingerprint = %(former)s
RETURNING name
