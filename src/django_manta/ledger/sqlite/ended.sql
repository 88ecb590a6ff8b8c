-- A run as fetch.sql tells it, if it has ended; of one that has not, a row without anything. For who waits for it and looks
-- often: until then nothing travels that may be large.
SELECT
    ended.id,
    ended.task,
    ended.backend,
    ended.queue,
    ended.priority,
    ended.state,
    ended.arguments,
    ended.overrides,
    ended.metadata,
    ended.progress,
    ended.result,
    ended.result_signature,
    ended.reason,
    ended.enqueued_at,
    ended.run_after,
    ended.due_at,
    ended.deadline,
    ended.expires_at,
    ended.started_at,
    ended.last_attempted_at,
    ended.finished_at,
    ended.worker,
    ended.token,
    ended.attempts,
    ended.failures,
    ended.crashes,
    ended.losses,
    ended.refs,
    ended.delegate,
    ended.workflow_id,
    ended.signature
FROM manta_run AS run
LEFT JOIN manta_run AS ended ON
    ended.id = run.id
    AND ended.state IN ('SUCCESSFUL', 'FAILED', 'CANCELLED', 'LOST', 'EXPIRED', 'QUARANTINED', 'UPSTREAM_FAILED')
WHERE run.id = %(id)s
