-- The database belongs to one cluster: what it knows of others goes.
DELETE FROM manta_cluster
WHERE name <> %(cluster)s
