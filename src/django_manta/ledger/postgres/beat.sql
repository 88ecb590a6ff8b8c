-- Renew a lease. Zero rows: it was marked lost, or is unknown.
UPDATE manta_worker
SET
    seen_at = statement_timestamp(),
    stopping = %(stopping)s
WHERE id = %(id)s AND lost_at IS NULL
RETURNING seen_at
