-- Take a batch of ready runs for a worker, under BEGIN IMMEDIATE.
--
-- The queues take turns. What is taken weighs no more than the budget, but for the last of it. Tokens go on from the
-- highest ever given: sqlite_sequence remembers the highest that was settled, also after its attempt was pruned, and
-- the runs hold the rest.
UPDATE manta_run
SET
    state = 'RUNNING',
    worker = %(worker)s,
    token = picked.token,
    attempts = MIN(attempts, 999999) + 1,
    started_at = COALESCE(started_at, strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')),
    last_attempted_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
FROM (
    SELECT
        line.id,
        line.position + MAX(
            COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'manta_attempt'), 0),
            -- Where a table was restored, the sequence may be behind it. Very high ones were written by hand:
            -- behind them there might be none left.
            COALESCE((SELECT max(token) FROM manta_attempt WHERE token < 2305843009213693952), 0),
            COALESCE((SELECT max(token) FROM manta_run WHERE state IN ('RUNNING', 'CANCELLING') AND token < 2305843009213693952), 0)
        ) AS token
    FROM (
        SELECT
            turns.id,
            row_number() OVER (ORDER BY turns.turn, turns.rank) AS position,
            sum(turns.weight) OVER (ORDER BY turns.turn, turns.rank ROWS UNBOUNDED PRECEDING) - turns.weight AS before
        FROM (
            SELECT
                run.id,
                length(CAST(run.arguments AS BLOB)) AS weight,
                wanted.key AS rank,
                row_number() OVER (
                    PARTITION BY wanted.key ORDER BY run.priority DESC, run.deadline, run.id
                ) AS turn
            FROM json_each(%(queues)s) AS wanted
            CROSS JOIN manta_run AS run
            WHERE
                run.id IN (
                    SELECT ready.id
                    FROM manta_run AS ready
                    WHERE
                        ready.state = 'READY'
                        AND ready.queue = wanted.value
                        -- An expired run never starts, even before the caretaker has found it.
                        AND (
                            ready.expires_at IS NULL
                            OR ready.attempts > 0
                            OR ready.expires_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
                        )
                        AND ready.deadline <= COALESCE(
                            strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %(horizon)s || ' seconds'), '9999-99'
                        )
                        AND ready.task NOT IN (SELECT value FROM json_each(%(not_tasks)s))
                        AND ready.id NOT IN (SELECT value FROM json_each(%(not_ids)s))
                    ORDER BY ready.priority DESC, ready.deadline, ready.id
                    LIMIT %(limit)s
                )
                AND NOT EXISTS (
                    SELECT 1 FROM manta_queue
                    WHERE manta_queue.name = wanted.value AND manta_queue.paused_at IS NOT NULL
                )
                -- What a worker takes after its lease was lost would only have to be recovered.
                AND NOT EXISTS (
                    SELECT 1 FROM manta_worker
                    WHERE manta_worker.id = %(worker)s AND manta_worker.lost_at IS NOT NULL
                )
        ) AS turns
    ) AS line
    WHERE line.position <= %(limit)s AND line.before < %(budget)s
) AS picked
WHERE manta_run.id = picked.id
RETURNING
    id,
    token,
    task,
    backend,
    queue,
    priority,
    arguments,
    overrides,
    signature,
    metadata,
    enqueued_at,
    run_after,
    deadline,
    expires_at,
    started_at,
    last_attempted_at,
    attempts,
    failures,
    crashes,
    losses,
    worker,
    (julianday('now') - julianday(refused_at)) * 86400.0,
    suspect,
    refs,
    workflow_id,
    dependents,
    NULL
