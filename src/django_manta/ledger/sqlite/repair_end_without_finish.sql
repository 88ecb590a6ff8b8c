-- fsck --repair: end-without-finish.
UPDATE manta_run
SET
    finished_at = COALESCE(last_attempted_at, strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'))
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND finished_at IS NULL AND state IN (
    'SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
)
RETURNING id
