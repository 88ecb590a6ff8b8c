-- Whether there is anything to expire: a look at one end of an index.
SELECT EXISTS (
    SELECT 1 FROM manta_run
    WHERE
        state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY')
        AND expires_at IS NOT NULL
        AND expires_at <= statement_timestamp()
        AND attempts = 0
)
