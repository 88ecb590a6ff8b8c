-- An execution gets another token: another one was settled under its own.
UPDATE manta_run
SET
    token = 1 + MAX(
        COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'manta_attempt'), 0),
        COALESCE((SELECT max(token) FROM manta_attempt WHERE token < 2305843009213693952), 0),
        COALESCE((SELECT max(token) FROM manta_run WHERE state IN ('RUNNING', 'CANCELLING') AND token < 2305843009213693952), 0)
    )
WHERE id = %(id)s AND token = %(token)s
RETURNING token
