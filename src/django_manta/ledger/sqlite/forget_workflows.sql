-- Remove workflows of which no run is left. A young one may get its runs presently.
DELETE FROM manta_workflow
WHERE id IN (
    SELECT workflow.id
    FROM manta_workflow AS workflow
    WHERE
        workflow.created_at < strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', '-1 hour')
        AND NOT EXISTS (SELECT 1 FROM manta_run AS run WHERE run.workflow_id = workflow.id)
    LIMIT %(limit)s
)
RETURNING id
