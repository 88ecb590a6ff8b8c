-- What workers' rows have as JSON texts.
SELECT
    id,
    foremen,
    troubles
FROM manta_worker
ORDER BY id
