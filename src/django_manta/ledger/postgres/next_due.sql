-- Seconds until the next scheduled run is due; negative when it already is.
SELECT EXTRACT(EPOCH FROM min(due_at) - statement_timestamp())::double precision
FROM manta_run
WHERE state = 'SCHEDULED'
