-- Keep runs back until a person releases them. Their due date stays.
UPDATE manta_run
SET
    state = 'HELD',
    reason = %(reason)s
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND state IN ('SCHEDULED', 'WAITING', 'READY')
    -- What has delegated will not be called again: there is nothing to keep back.
    AND delegate IS NULL
RETURNING
    id,
    state
