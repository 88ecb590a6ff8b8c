-- Nobody else changes which cluster the database belongs to, until the transaction ends.
LOCK TABLE manta_cluster IN SHARE ROW EXCLUSIVE MODE
