-- A worker begins.
INSERT INTO manta_worker (
    id,
    name,
    host,
    pid,
    version,
    cluster,
    queues,
    runner,
    lease_seconds,
    slots,
    started_at,
    seen_at
)
VALUES (
    %(id)s,
    %(name)s,
    %(host)s,
    %(pid)s,
    %(version)s,
    %(cluster)s,
    %(queues)s,
    %(runner)s,
    %(lease_seconds)s,
    %(slots)s,
    strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
)
RETURNING seen_at
