-- A worker ends. Its row goes only if it holds nothing; what it still holds must be recovered.
DELETE FROM manta_worker
WHERE
    id = %(id)s
    AND NOT EXISTS (
        SELECT 1 FROM manta_run
        WHERE manta_run.worker = %(id)s AND manta_run.state IN ('RUNNING', 'CANCELLING')
    )
RETURNING id
