-- Seconds until the next scheduled run is due; negative when it already is.
SELECT CASE min(due_at)
    WHEN '-infinity' THEN -1
    WHEN 'infinity' THEN NULL
    ELSE EXTRACT(EPOCH FROM min(due_at) - statement_timestamp())::double precision
END
FROM manta_run
WHERE state = 'SCHEDULED'
