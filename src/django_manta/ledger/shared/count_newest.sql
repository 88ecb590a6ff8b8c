-- How many of the newest so many runs each queue has in each state. For the states that no index
-- finds (HELD, WAITING): the cost is that of the window, however large the table.
SELECT
    newest.state,
    newest.queue,
    count(*)
FROM (
    SELECT
        run.state,
        run.queue
    FROM manta_run AS run
    ORDER BY run.id DESC
    LIMIT %(limit)s
) AS newest
GROUP BY
    newest.state,
    newest.queue
