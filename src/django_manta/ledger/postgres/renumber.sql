-- An execution gets another token: another one was settled under its own.
UPDATE manta_run AS run
SET token = nextval('manta_attempt_token_seq')
WHERE run.id = %(id)s::uuid AND run.token = %(token)s::bigint
RETURNING run.token
