-- Of some runs, the executions that a settlement may still move: what it passed over was busy.
SELECT
    run.id,
    run.token
FROM manta_run AS run
WHERE
    run.id IN (SELECT value FROM json_each(%(ids)s))
    AND run.token IS NOT NULL
    AND (
        %(worker)s IS NULL
        OR (
            run.worker = %(worker)s
            AND (
                %(recovering)s
                OR NOT EXISTS (
                    SELECT 1 FROM manta_worker AS worker
                    WHERE worker.id = %(worker)s AND worker.lost_at IS NOT NULL
                )
            )
        )
    )
