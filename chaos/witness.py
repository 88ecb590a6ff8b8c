"""
A witness in the scratch database: a trigger that writes down every move of every run.

Runs may be moved and removed by many at once; what was early, double or forbidden is told by what the witness saw,
not by what is left. It stands inside the transactions that it sees: what was rolled back never was.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from chaos import world
from django_manta.states import ENDS

_INSTALL = """
CREATE TABLE chaos_move (
    number bigserial PRIMARY KEY,
    run_id uuid NOT NULL,
    task text NOT NULL,
    former text NOT NULL,
    state text NOT NULL,
    due_at timestamptz,
    expires_at timestamptz,
    finished_at timestamptz,
    attempts integer NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX chaos_move_run ON chaos_move (run_id);

CREATE FUNCTION chaos_witness() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    seen manta_run := COALESCE(OLD, NEW);
BEGIN
    INSERT INTO chaos_move (run_id, task, former, state, due_at, expires_at, finished_at, attempts, at)
    VALUES (
        seen.id,
        seen.task,
        CASE TG_OP WHEN 'INSERT' THEN '' ELSE OLD.state END,
        CASE TG_OP WHEN 'DELETE' THEN 'REMOVED' ELSE NEW.state END,
        seen.due_at,
        seen.expires_at,
        seen.finished_at,
        seen.attempts,
        -- As every statement of the ledger reads the clock.
        statement_timestamp()
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos_witness_inserts AFTER INSERT OR DELETE ON manta_run
FOR EACH ROW EXECUTE FUNCTION chaos_witness();
CREATE TRIGGER chaos_witness_moves AFTER UPDATE ON manta_run
FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION chaos_witness();
"""

_DISMISS = """
DROP TRIGGER chaos_witness_inserts ON manta_run;
DROP TRIGGER chaos_witness_moves ON manta_run;
DROP FUNCTION chaos_witness;
DROP TABLE chaos_move;
"""

#: What may never happen, and how to find it.
_CRIMES = {
    "early_promotions": "former = 'SCHEDULED' AND state = 'READY' AND at < due_at",
    "early_expiries": "state = 'EXPIRED' AND (at < expires_at OR attempts > 0)",
    "reopened": "former = ANY(%(ends)s) AND state <> 'REMOVED'",
    "removed_unfinished": "state = 'REMOVED' AND former <> ALL(%(ends)s)",
    "started_expired": "state = 'RUNNING' AND attempts = 0 AND at > expires_at",
}

_TWICE = """
SELECT
    -- For one date, though each time it was given back and scheduled anew by somebody who came too late.
    count(*) FILTER (WHERE promoted > dates),
    count(*) FILTER (WHERE expired > 1),
    count(*) FILTER (WHERE ended > 1)
FROM (
    SELECT
        count(*) FILTER (WHERE former = 'SCHEDULED' AND state = 'READY') AS promoted,
        count(DISTINCT due_at) FILTER (WHERE former = 'SCHEDULED' AND state = 'READY') AS dates,
        count(*) FILTER (WHERE state = 'EXPIRED') AS expired,
        count(*) FILTER (WHERE state = ANY(%(ends)s)) AS ended
    FROM chaos_move
    GROUP BY run_id
) AS run
"""

_LOST = """
SELECT count(*)
FROM (SELECT DISTINCT ON (run_id) state FROM chaos_move ORDER BY run_id, number DESC) AS last
WHERE last.state <> 'REMOVED' AND last.state <> ALL(%s)
"""


@contextmanager
def watching() -> Iterator[None]:
    """Every move of a run is written down for as long as the block."""
    world.run(_INSTALL)
    try:
        yield
    finally:
        world.run(_DISMISS)


def crimes() -> dict[str, int]:
    """How often each thing happened that may not."""
    asked = {"ends": sorted(ENDS)}
    found = {
        name: int(world.named(f"SELECT count(*) FROM chaos_move WHERE {sign}", asked)[0][0])
        for name, sign in _CRIMES.items()
    }
    [twice] = world.named(_TWICE, asked)
    return found | dict(zip(("double_promotions", "double_expiries", "double_ends"), map(int, twice), strict=True))


def moves(former: str, state: str) -> int:
    return world.number("SELECT count(*) FROM chaos_move WHERE former = %s AND state = %s", former, state)


def lost() -> int:
    """Runs that were accepted and have not ended."""
    return world.number(_LOST, sorted(ENDS))


def enqueued() -> int:
    return world.number("SELECT count(*) FROM chaos_move WHERE former = ''")


def ended() -> dict[str, int]:
    """How many runs ended how, those that retention has removed included."""
    return dict(
        world.look(
            "SELECT state, count(*) FROM chaos_move WHERE state = ANY(%s) GROUP BY state ORDER BY state", sorted(ENDS)
        )
    )
