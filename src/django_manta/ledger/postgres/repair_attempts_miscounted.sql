-- fsck --repair: attempts-miscounted.
UPDATE manta_run
SET
    attempts = (
        SELECT count(*) FROM manta_attempt AS attempt
        WHERE attempt.run_id = manta_run.id AND attempt.outcome <> 'RETURNED'
    ) + CASE WHEN state IN ('RUNNING', 'CANCELLING') THEN 1 ELSE 0 END
WHERE
    id = ANY(%(ids)s::uuid[])
    AND attempts <> (
        SELECT count(*) FROM manta_attempt AS attempt
        WHERE attempt.run_id = manta_run.id AND attempt.outcome <> 'RETURNED'
    ) + CASE WHEN state IN ('RUNNING', 'CANCELLING') THEN 1 ELSE 0 END
RETURNING id
