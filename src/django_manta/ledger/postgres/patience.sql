-- In this transaction, wait no longer than this for a row that somebody holds.
SELECT set_config('lock_timeout', %(milliseconds)s, true)
