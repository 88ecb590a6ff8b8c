-- Renew a lease. Zero rows: it was marked lost, or is unknown.
UPDATE manta_worker
SET
    seen_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    stopping = %(stopping)s
WHERE id = %(id)s AND lost_at IS NULL
RETURNING seen_at
