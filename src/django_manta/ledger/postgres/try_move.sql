-- Whether runs can be moved at all: what a claim, a promotion and an end have in common. It is undone at once.
UPDATE manta_run AS run
SET
    state = %(state)s,
    due_at = NULL,
    attempts = LEAST(run.attempts, 999999) + 1
WHERE run.id = ANY(%(ids)s::uuid[])
