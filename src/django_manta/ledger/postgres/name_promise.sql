-- Give a promise its name; nothing happens if an open one bears it.
INSERT INTO manta_promise (run_id, name)
VALUES (%(id)s::uuid, %(name)s)
ON CONFLICT DO NOTHING
RETURNING run_id
