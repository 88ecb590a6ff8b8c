-- Runs whose dependents are still to be told.
SELECT run_id
FROM manta_herald
ORDER BY run_id
LIMIT %(limit)s
OFFSET %(skip)s
