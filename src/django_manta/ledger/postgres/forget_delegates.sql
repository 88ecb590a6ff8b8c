-- An operator's retry: what was delegated is delegated anew, or not.
DELETE FROM manta_dependency
WHERE run_id = ANY(%(ids)s::uuid[]) AND role = 'delegate'
