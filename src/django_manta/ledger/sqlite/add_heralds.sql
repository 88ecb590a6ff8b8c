-- Runs whose dependents are still to be told.
INSERT OR IGNORE INTO manta_herald (run_id)
SELECT value FROM json_each(%(ids)s)
