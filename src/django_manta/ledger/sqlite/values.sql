-- The values of successful runs, or to whom they delegated.
SELECT
    run.id,
    run.result,
    run.result_signature,
    run.delegate
FROM manta_run AS run
WHERE run.id IN (SELECT value FROM json_each(%(ids)s)) AND run.state = 'SUCCESSFUL'
