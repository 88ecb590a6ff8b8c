-- An operator's retry: what was delegated is delegated anew, or not.
DELETE FROM manta_dependency
WHERE run_id IN (SELECT value FROM json_each(%(ids)s)) AND role = 'delegate'
