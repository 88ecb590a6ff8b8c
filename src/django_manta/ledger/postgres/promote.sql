-- Make ready what is due.
WITH due AS (
    SELECT id
    FROM manta_run
    WHERE state = 'SCHEDULED' AND due_at <= statement_timestamp() + make_interval(secs => %(ahead)s)
    ORDER BY due_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE manta_run AS run
SET
    state = 'READY',
    due_at = NULL
FROM due
WHERE run.id = due.id
RETURNING run.id
