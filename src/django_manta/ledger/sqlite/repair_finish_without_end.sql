-- fsck --repair: finish-without-end.
UPDATE manta_run
SET
    finished_at = NULL
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND finished_at IS NOT NULL AND state IN (
    'HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING', 'CANCELLING'
)
RETURNING id
