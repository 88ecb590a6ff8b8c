-- fsck --repair: owned-without-token.
UPDATE manta_run
SET
    state = 'READY',
    token = NULL,
    worker = ''
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state IN ('RUNNING', 'CANCELLING') AND (token IS NULL OR worker = '')
RETURNING id
