-- Everything that waits for runs, directly or not: what is over for one that waited does not wait any more.
WITH RECURSIVE waiting (id) AS (
    SELECT edge.run_id
    FROM manta_dependency AS edge
    JOIN manta_run AS run ON run.id = edge.run_id AND run.finished_at IS NULL
    WHERE edge.on_id = ANY(%(ids)s::uuid[]) AND NOT edge.told
    UNION
    SELECT edge.run_id
    FROM waiting
    JOIN manta_dependency AS edge ON edge.on_id = waiting.id AND NOT edge.told
    JOIN manta_run AS run ON run.id = edge.run_id AND run.finished_at IS NULL
)
-- The nearest first; and whether a bad end of what it waits for may let it pass.
SELECT
    waiting.id,
    EXISTS (
        SELECT 1 FROM manta_gate AS gate
        WHERE gate.run_id = waiting.id AND gate.mode IN ('all_finished', 'any_finished')
    )
FROM waiting
