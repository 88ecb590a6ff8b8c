-- The workflow of a name and a unique key.
SELECT workflow.id
FROM manta_workflow AS workflow
WHERE workflow.name = %(name)s AND workflow.unique_key = %(unique_key)s
