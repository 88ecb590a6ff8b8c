-- By how many the sequence of tokens is behind the highest that was given; NULL or less than 1: it is not.
SELECT
    GREATEST(
        (SELECT max(attempt.token) FROM manta_attempt AS attempt),
        (SELECT max(run.token) FROM manta_run AS run WHERE run.state IN ('RUNNING', 'CANCELLING'))
    ) - COALESCE(pg_sequence_last_value('manta_attempt_token_seq'::regclass), 0)
