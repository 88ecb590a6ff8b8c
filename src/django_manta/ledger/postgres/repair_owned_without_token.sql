-- fsck --repair: owned-without-token. Nobody can settle it: it is ready again, or cancelled if that was asked.
UPDATE manta_run
SET
    state = CASE WHEN state = 'CANCELLING' THEN 'CANCELLED' ELSE 'READY' END,
    finished_at = CASE WHEN state = 'CANCELLING' THEN statement_timestamp() END,
    token = NULL,
    worker = '',
    attempts = (
        SELECT count(*) FROM manta_attempt AS attempt
        WHERE attempt.run_id = manta_run.id AND attempt.outcome <> 'RETURNED'
    )
WHERE id = ANY(%(ids)s::uuid[]) AND state IN ('RUNNING', 'CANCELLING') AND (token IS NULL OR worker = '')
RETURNING id
