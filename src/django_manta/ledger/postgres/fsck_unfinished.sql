-- What the signature of unfinished runs covers, after one of them, or from the first on.
SELECT
    run.id,
    run.backend,
    run.task,
    run.arguments,
    run.overrides,
    run.refs,
    run.signature,
    run.delegate,
    run.result_signature
FROM manta_run AS run
WHERE run.finished_at IS NULL AND (%(after)s::uuid IS NULL OR run.id > %(after)s::uuid)
ORDER BY run.id
LIMIT %(limit)s
