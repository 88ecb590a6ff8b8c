-- A promise that expired or was cancelled no longer bears its name.
UPDATE manta_promise
SET open = false
WHERE
    name = %(name)s
    AND open
    AND NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.id = manta_promise.run_id AND run.finished_at IS NULL)
