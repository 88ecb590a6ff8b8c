-- To whom runs that wait have delegated.
SELECT
    run.id,
    run.delegate
FROM manta_run AS run
WHERE run.id = ANY(%(ids)s::uuid[]) AND run.state = 'WAITING' AND run.delegate IS NOT NULL
