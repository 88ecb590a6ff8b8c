-- Claims from the queue go on.
UPDATE manta_queue
SET paused_at = NULL
WHERE name = %(queue)s AND paused_at IS NOT NULL
RETURNING name
