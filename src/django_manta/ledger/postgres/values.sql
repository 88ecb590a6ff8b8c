-- The values of successful runs, or to whom they delegated.
SELECT
    run.id,
    run.result,
    run.result_signature,
    run.delegate
FROM manta_run AS run
WHERE run.id = ANY(%(ids)s::uuid[]) AND run.state = 'SUCCESSFUL'
