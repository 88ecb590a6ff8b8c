-- Make ready what is due.
UPDATE manta_run
SET
    state = 'READY',
    due_at = NULL
WHERE
    id IN (
        SELECT due.id
        FROM manta_run AS due
        WHERE due.state = 'SCHEDULED' AND due.due_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %(ahead)s || ' seconds')
        ORDER BY due.due_at
        LIMIT %(limit)s
    )
RETURNING id
