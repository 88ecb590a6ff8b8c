-- Settle a promise from outside: an open one only, and once.
UPDATE manta_run
SET
    state = %(state)s,
    finished_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    result = %(result)s,
    result_signature = %(signature)s,
    reason = %(reason)s
WHERE id = %(id)s AND task = %(task)s AND state IN ('WAITING', 'HELD')
RETURNING
    id,
    state,
    dependents
