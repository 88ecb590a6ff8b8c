-- Lost workers that hold nothing any more, an hour after they were lost.
DELETE FROM manta_worker
WHERE
    lost_at < strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', '-1 hour')
    AND NOT EXISTS (
        SELECT 1 FROM manta_run
        WHERE manta_run.worker = manta_worker.id AND manta_run.state IN ('RUNNING', 'CANCELLING')
    )
RETURNING id
