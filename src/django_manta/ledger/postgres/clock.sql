-- What time it is, by the clock that decides.
SELECT statement_timestamp()
