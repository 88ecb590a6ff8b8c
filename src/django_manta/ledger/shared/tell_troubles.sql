-- What keeps a worker's runs from being executed, in its own words.
UPDATE manta_worker
SET troubles = %(troubles)s
WHERE id = %(worker)s AND lost_at IS NULL
RETURNING id
