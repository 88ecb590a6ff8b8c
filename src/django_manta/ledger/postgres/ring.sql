-- Wake the workers. Outside the caller's transaction: NOTIFY takes a global lock at commit.
SELECT pg_notify(%(channel)s, %(word)s)
