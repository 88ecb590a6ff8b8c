-- By how many the sequence of tokens is behind the highest that was given; NULL or less than 1: it is not. Half of the
-- way to the last one nobody has given any: such a token was written by hand, and behind it there might be none left.
SELECT
    GREATEST(
        (SELECT max(attempt.token) FROM manta_attempt AS attempt WHERE attempt.token < 2305843009213693952),
        (
            SELECT max(run.token) FROM manta_run AS run
            WHERE run.state IN ('RUNNING', 'CANCELLING') AND run.token < 2305843009213693952
        )
    ) - COALESCE(pg_sequence_last_value('manta_attempt_token_seq'::regclass), 0)
