-- In this transaction: wait no longer than this for a row that somebody holds, and read no whole table for the sake
-- of rows that are new to the planner's statistics; nor compile anything because a table that is forbidden counts as
-- endless.
SELECT
    set_config('lock_timeout', %(milliseconds)s, true),
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true)
