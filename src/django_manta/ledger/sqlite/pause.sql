-- No worker claims from a paused queue.
INSERT INTO manta_queue (name, paused_at)
VALUES (%(queue)s, strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'))
ON CONFLICT (name) DO UPDATE SET paused_at = COALESCE(manta_queue.paused_at, excluded.paused_at)
RETURNING paused_at
