-- The executions that a worker holds, as the ledger sees it.
SELECT
    id,
    token
FROM manta_run
WHERE worker = %(worker)s AND state IN ('RUNNING', 'CANCELLING')
