-- Runs whose gate nobody has armed: who enqueued them died, or could not reach the database.
SELECT gate.run_id
FROM manta_gate AS gate
WHERE NOT gate.armed AND gate.made_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', -%(seconds)s || ' seconds')
ORDER BY gate.made_at
LIMIT %(limit)s
OFFSET %(skip)s
