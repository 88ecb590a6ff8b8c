-- Replace a run's metadata. A fenced write: only the execution that holds the run.
UPDATE manta_run
SET metadata = %(metadata)s
WHERE id = %(id)s AND token = %(token)s
RETURNING id
