-- Rows with values that no verb writes, and that no process may be able to read: written by hand.
SELECT
    'impossible-value' AS failed_check,
    found.run_id,
    found.about || ' cannot have such' || found.wrong AS detail
FROM (
    SELECT
        run.id AS run_id,
        'a run' AS about,
        CASE WHEN json_type(run.metadata) <> 'object' THEN ' metadata' ELSE '' END ||
        CASE WHEN json_type(run.progress) NOT IN ('object', 'null') THEN ' progress' ELSE '' END ||
        CASE WHEN run.attempts < 0 THEN ' attempts' ELSE '' END ||
        CASE WHEN run.failures < 0 THEN ' failures' ELSE '' END ||
        CASE WHEN run.crashes < 0 THEN ' crashes' ELSE '' END ||
        CASE WHEN run.losses < 0 THEN ' losses' ELSE '' END AS wrong
    FROM manta_run AS run
    UNION ALL
    SELECT
        attempt.run_id AS run_id,
        'attempt ' || attempt.token AS about,
        CASE WHEN attempt.outcome NOT IN ('SUCCESSFUL', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'CRASHED', 'LOST', 'RETURNED', 'INTERRUPTED', 'DEFERRED', 'DELEGATED') THEN ' outcome' ELSE '' END ||
        CASE WHEN attempt.number < 0 THEN ' number' ELSE '' END AS wrong
    FROM manta_attempt AS attempt
    UNION ALL
    SELECT
        edge.run_id AS run_id,
        'the edge to run ' || edge.on_id AS about,
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
        CASE WHEN gate.laters < 0 THEN ' laters' ELSE '' END AS wrong
    FROM manta_gate AS gate
    UNION ALL
    SELECT
        NULL AS run_id,
        'worker ' || worker.id AS about,
        CASE WHEN json_type(worker.queues) <> 'array' THEN ' queues' ELSE '' END AS wrong
    FROM manta_worker AS worker
    UNION ALL
    SELECT
        NULL AS run_id,
        'cluster ' || cluster.name AS about,
        CASE WHEN cluster.term < 0 THEN ' term' ELSE '' END AS wrong
    FROM manta_cluster AS cluster
) AS found
WHERE found.wrong <> ''
ORDER BY
    found.run_id,
    found.about
LIMIT %(limit)s
