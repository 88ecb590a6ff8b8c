-- fsck --repair: date-without-schedule.
UPDATE manta_run
SET
    due_at = NULL
WHERE id = ANY(%(ids)s::uuid[]) AND due_at IS NOT NULL AND state NOT IN ('SCHEDULED', 'HELD', 'WAITING')
RETURNING id
