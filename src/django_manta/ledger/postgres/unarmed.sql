-- Runs whose gate nobody has armed: who enqueued them died, or could not reach the database.
SELECT gate.run_id
FROM manta_gate AS gate
WHERE NOT gate.armed AND gate.made_at <= statement_timestamp() + make_interval(secs => -%(seconds)s::double precision)
ORDER BY gate.made_at
LIMIT %(limit)s
OFFSET %(skip)s
