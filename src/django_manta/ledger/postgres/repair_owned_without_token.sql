-- fsck --repair: owned-without-token.
UPDATE manta_run
SET
    state = 'READY',
    token = NULL,
    worker = ''
WHERE id = ANY(%(ids)s::uuid[]) AND state IN ('RUNNING', 'CANCELLING') AND (token IS NULL OR worker = '')
RETURNING id
