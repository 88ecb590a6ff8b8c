-- What time it is, by the clock that decides.
SELECT strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')
