-- fsck --repair: scheduled-without-date.
UPDATE manta_run
SET
    state = 'READY'
WHERE id = ANY(%(ids)s::uuid[]) AND state = 'SCHEDULED' AND due_at IS NULL
RETURNING id
