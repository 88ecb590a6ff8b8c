-- To whom runs that wait have delegated.
SELECT
    run.id,
    run.delegate
FROM manta_run AS run
WHERE run.id IN (SELECT value FROM json_each(%(ids)s)) AND run.state = 'WAITING' AND run.delegate IS NOT NULL
