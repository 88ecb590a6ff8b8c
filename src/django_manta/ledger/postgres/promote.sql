-- Make ready what is due.
WITH due AS (
    SELECT id
    FROM manta_run
    WHERE state = 'SCHEDULED' AND due_at <= statement_timestamp() + make_interval(secs => %(ahead)s)
    ORDER BY due_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE manta_run AS run
SET
    state = 'READY',
    due_at = NULL
-- An array, not a join: misjudging how many there are, the planner would read the whole table.
WHERE run.id = ANY(ARRAY(SELECT due.id FROM due))
RETURNING run.id
