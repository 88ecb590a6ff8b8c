-- Show how far an execution has come. A fenced write: only the execution that holds the run.
UPDATE manta_run
SET progress = %(progress)s::jsonb
WHERE id = %(id)s AND token = %(token)s
RETURNING id
