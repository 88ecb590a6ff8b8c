-- For the rest of this transaction: give up what somebody else holds for longer.
SELECT set_config('lock_timeout', %(milliseconds)s, true)
