-- Become or stay the leader of a cluster, unless another worker with a lease in force is.
UPDATE manta_cluster
SET
    leader = %(worker)s,
    term = term + CASE WHEN leader = %(worker)s THEN 0 ELSE 1 END
WHERE
    name = %(cluster)s
    AND (
        leader = %(worker)s
        OR NOT EXISTS (
            SELECT 1 FROM manta_worker AS worker
            WHERE worker.id = manta_cluster.leader AND worker.lost_at IS NULL
        )
    )
RETURNING term
