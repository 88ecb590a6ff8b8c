-- A worker leaves, and what it holds goes on without it: whoever can shall adopt it now.
UPDATE manta_worker
SET lost_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
WHERE id = %(id)s AND lost_at IS NULL
RETURNING id
