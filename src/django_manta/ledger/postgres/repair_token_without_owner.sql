-- fsck --repair: token-without-owner.
UPDATE manta_run
SET
    token = NULL,
    worker = ''
WHERE id = ANY(%(ids)s::uuid[]) AND state NOT IN ('RUNNING', 'CANCELLING') AND (token IS NOT NULL OR worker <> '')
RETURNING id
