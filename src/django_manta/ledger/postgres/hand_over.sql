-- A worker leaves, and what it holds goes on without it: whoever can shall adopt it now.
UPDATE manta_worker
SET lost_at = statement_timestamp()
WHERE id = %(id)s AND lost_at IS NULL
RETURNING id
