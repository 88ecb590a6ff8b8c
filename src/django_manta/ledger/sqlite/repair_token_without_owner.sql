-- fsck --repair: token-without-owner.
UPDATE manta_run
SET
    token = NULL,
    worker = ''
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state NOT IN ('RUNNING', 'CANCELLING') AND (token IS NOT NULL OR worker <> '')
RETURNING id
