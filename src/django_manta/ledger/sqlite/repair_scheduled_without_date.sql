-- fsck --repair: scheduled-without-date.
UPDATE manta_run
SET
    state = 'READY'
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state = 'SCHEDULED' AND due_at IS NULL
RETURNING id
