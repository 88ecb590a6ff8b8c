-- Whether runs can be moved at all: what a claim, a promotion and an end have in common. It is undone at once.
UPDATE manta_run
SET
    state = %(state)s,
    due_at = NULL,
    attempts = MIN(attempts, 999999) + 1
WHERE id IN (SELECT value FROM json_each(%(ids)s))
