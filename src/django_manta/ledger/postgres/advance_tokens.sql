-- Have the sequence of tokens go on behind the highest that was given, and well behind: while this looks, others go on
-- claiming, and no token of theirs may be given again. Of very high ones see tokens_behind.sql.
SELECT setval('manta_attempt_token_seq', highest.token + 100000)
FROM (
    SELECT GREATEST(
        (SELECT max(attempt.token) FROM manta_attempt AS attempt WHERE attempt.token < 2305843009213693952),
        (
            SELECT max(run.token) FROM manta_run AS run
            WHERE run.state IN ('RUNNING', 'CANCELLING') AND run.token < 2305843009213693952
        )
    ) AS token
) AS highest
WHERE highest.token > COALESCE(pg_sequence_last_value('manta_attempt_token_seq'::regclass), 0)
