-- fsck --repair: end-without-finish.
UPDATE manta_run
SET
    finished_at = COALESCE(last_attempted_at, statement_timestamp())
WHERE id = ANY(%(ids)s::uuid[]) AND finished_at IS NULL AND state IN (
    'SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED'
)
RETURNING id
