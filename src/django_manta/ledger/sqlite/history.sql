-- The ended attempts of some runs, in the order they were claimed.
SELECT
    run_id,
    token,
    number,
    outcome,
    worker,
    executor,
    started_at,
    finished_at,
    error_class,
    error_message,
    traceback,
    output,
    log_ref,
    peak_memory
FROM manta_attempt
WHERE run_id IN (SELECT value FROM json_each(%(ids)s))
ORDER BY token
