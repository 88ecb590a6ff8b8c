-- The first process of a cluster leaves its name and the fingerprint of its key.
INSERT INTO manta_cluster (name, key_fingerprint)
VALUES (%(cluster)s, %(fingerprint)s)
ON CONFLICT (name) DO NOTHING
