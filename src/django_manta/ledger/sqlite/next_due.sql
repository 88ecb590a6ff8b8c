-- Seconds until the next scheduled run is due; negative when it already is.
SELECT (julianday(min(due_at)) - julianday('now')) * 86400.0
FROM manta_run
WHERE state = 'SCHEDULED'
