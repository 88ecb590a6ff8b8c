-- fsck --repair: date-without-schedule.
UPDATE manta_run
SET
    due_at = NULL
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND due_at IS NOT NULL AND state NOT IN ('SCHEDULED', 'HELD', 'WAITING')
RETURNING id
