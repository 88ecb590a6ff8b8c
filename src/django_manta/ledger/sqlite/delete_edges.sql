-- Remove the edges of runs that are gone. What others remember of them stays: how they ended counts if somebody
-- retries one of those.
DELETE FROM manta_dependency
WHERE run_id IN (SELECT value FROM json_each(%(ids)s))
