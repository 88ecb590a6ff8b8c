-- Of some runs, the executions that a settlement may still move: what it passed over was busy.
SELECT
    run.id,
    run.token
FROM manta_run AS run
WHERE
    run.id = ANY(%(ids)s::uuid[])
    AND run.token IS NOT NULL
    AND (
        %(worker)s::text IS NULL
        OR (
            run.worker = %(worker)s::text
            AND (
                %(recovering)s::boolean
                OR NOT EXISTS (
                    SELECT 1 FROM manta_worker AS worker
                    WHERE worker.id = %(worker)s::text AND worker.lost_at IS NOT NULL
                )
            )
        )
    )
