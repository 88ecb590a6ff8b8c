-- Promises that were retried bear their names again: of each name one, and only if no open one does.
UPDATE manta_promise
SET open = true
WHERE
    run_id = ANY(%(ids)s::uuid[])
    AND NOT EXISTS (SELECT 1 FROM manta_promise AS other WHERE other.name = manta_promise.name AND other.open)
    AND NOT EXISTS (
        SELECT 1
        FROM manta_promise AS later
        WHERE later.name = manta_promise.name AND later.run_id = ANY(%(ids)s::uuid[]) AND later.run_id > manta_promise.run_id
    )
