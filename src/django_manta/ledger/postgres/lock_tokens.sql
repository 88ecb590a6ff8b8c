-- Only one at a time sets the sequence of tokens.
SELECT pg_advisory_xact_lock(hashtextextended('manta_attempt_token_seq', 0))
