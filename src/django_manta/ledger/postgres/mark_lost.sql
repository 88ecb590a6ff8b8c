-- Declare a lease lost, provided it is still as the observer saw it.
UPDATE manta_worker
SET lost_at = statement_timestamp()
WHERE id = %(id)s AND lost_at IS NULL AND seen_at = %(seen_at)s::timestamptz
RETURNING id
