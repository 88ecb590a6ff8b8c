-- Rows with values that no verb writes, and that no process may be able to read: written by hand, or before the
-- constraints of the tables were there.
SELECT
    'impossible-value' AS failed_check,
    found.run_id,
    found.about || ' cannot have such' || found.wrong AS detail
FROM (
    SELECT
        run.id AS run_id,
        'a run' AS about,
        CASE WHEN jsonb_typeof(run.metadata) <> 'object' THEN ' metadata' ELSE '' END ||
        CASE WHEN jsonb_typeof(run.progress) NOT IN ('object', 'null') THEN ' progress' ELSE '' END ||
        CASE WHEN run.attempts < 0 THEN ' attempts' ELSE '' END ||
        CASE WHEN run.failures < 0 THEN ' failures' ELSE '' END ||
        CASE WHEN run.crashes < 0 THEN ' crashes' ELSE '' END ||
        CASE WHEN run.losses < 0 THEN ' losses' ELSE '' END ||
        CASE WHEN run.enqueued_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' enqueued_at' ELSE '' END ||
        CASE WHEN run.run_after NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' run_after' ELSE '' END ||
        CASE WHEN run.deadline NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' deadline' ELSE '' END ||
        CASE WHEN run.expires_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' expires_at' ELSE '' END ||
        CASE WHEN run.due_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' due_at' ELSE '' END ||
        CASE WHEN run.started_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' started_at' ELSE '' END ||
        CASE WHEN run.last_attempted_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' last_attempted_at' ELSE '' END ||
        CASE WHEN run.finished_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' finished_at' ELSE '' END ||
        CASE WHEN run.refused_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' refused_at' ELSE '' END AS wrong
    FROM manta_run AS run
    UNION ALL
    SELECT
        attempt.run_id AS run_id,
        'attempt ' || attempt.token::text AS about,
        CASE WHEN attempt.outcome NOT IN ('SUCCESSFUL', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'CRASHED', 'LOST', 'RETURNED', 'INTERRUPTED', 'DEFERRED', 'DELEGATED') THEN ' outcome' ELSE '' END ||
        CASE WHEN attempt.number < 0 THEN ' number' ELSE '' END ||
        CASE WHEN attempt.started_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' started_at' ELSE '' END ||
        CASE WHEN attempt.finished_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' finished_at' ELSE '' END AS wrong
    FROM manta_attempt AS attempt
    UNION ALL
    SELECT
        edge.run_id AS run_id,
        'the edge to run ' || edge.on_id::text AS about,
        CASE WHEN edge.role NOT IN ('value', 'after', 'delegate') THEN ' role' ELSE '' END AS wrong
    FROM manta_dependency AS edge
    UNION ALL
    SELECT
        gate.run_id AS run_id,
        'a gate' AS about,
        -- The counts of one that is armed are compared with its edges (fsck.sql).
        CASE WHEN gate.mode NOT IN ('all_successful', 'all_finished', 'any_successful', 'any_finished') THEN ' mode' ELSE '' END ||
        CASE WHEN NOT gate.armed AND gate.pending_values < 0 THEN ' pending_values' ELSE '' END ||
        CASE WHEN NOT gate.armed AND gate.bad_values < 0 THEN ' bad_values' ELSE '' END ||
        CASE WHEN NOT gate.armed AND gate.pending_after < 0 THEN ' pending_after' ELSE '' END ||
        CASE WHEN NOT gate.armed AND gate.met_after < 0 THEN ' met_after' ELSE '' END ||
        CASE WHEN NOT gate.armed AND gate.bad_after < 0 THEN ' bad_after' ELSE '' END ||
        CASE WHEN NOT gate.armed AND gate.consumed < 0 THEN ' consumed' ELSE '' END ||
        CASE WHEN gate.laters < 0 THEN ' laters' ELSE '' END ||
        CASE WHEN gate.made_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' made_at' ELSE '' END AS wrong
    FROM manta_gate AS gate
    UNION ALL
    SELECT
        NULL::uuid AS run_id,
        'workflow ' || workflow.id::text AS about,
        CASE WHEN workflow.created_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' created_at' ELSE '' END AS wrong
    FROM manta_workflow AS workflow
    UNION ALL
    SELECT
        NULL::uuid AS run_id,
        'worker ' || worker.id AS about,
        CASE WHEN jsonb_typeof(worker.queues) <> 'array' THEN ' queues' ELSE '' END ||
        CASE WHEN NOT (worker.lease_seconds >= 0 AND worker.lease_seconds < 'infinity') THEN ' lease_seconds' ELSE '' END ||
        CASE WHEN worker.started_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' started_at' ELSE '' END ||
        CASE WHEN worker.seen_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' seen_at' ELSE '' END ||
        CASE WHEN worker.lost_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' lost_at' ELSE '' END AS wrong
    FROM manta_worker AS worker
    UNION ALL
    SELECT
        NULL::uuid AS run_id,
        'queue ' || queue.name AS about,
        CASE WHEN queue.paused_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN ' paused_at' ELSE '' END AS wrong
    FROM manta_queue AS queue
    UNION ALL
    SELECT
        NULL::uuid AS run_id,
        'cluster ' || cluster.name AS about,
        CASE WHEN cluster.term < 0 THEN ' term' ELSE '' END AS wrong
    FROM manta_cluster AS cluster
) AS found
WHERE found.wrong <> ''
ORDER BY
    found.run_id,
    found.about
LIMIT %(limit)s
