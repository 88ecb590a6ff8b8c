-- Wake the workers. Outside the caller's transaction: NOTIFY takes a global lock at commit. And without waiting for the
-- disk, where nothing else is committed with it: a server that goes down forgets what was rung in any case.
SELECT
    set_config('synchronous_commit', CASE WHEN %(alone)s THEN 'off' ELSE current_setting('synchronous_commit') END, true),
    pg_notify(%(channel)s, %(word)s)
