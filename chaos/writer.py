"""
``python -m chaos.writer EDGES SEED``: enqueues runs that wait for young ones, until there are as many edges.

Prints how many runs were accepted.
"""

import random
import sys
from contextlib import nullcontext, suppress

import django
from django.db import transaction

#: What is waited for is chosen among so many of the youngest runs: most of them are being finished.
YOUNGEST = 200

#: So many of them fail.
BAD_SHARE = 0.03


def write(edges: int, dice: random.Random) -> int:
    from chaos import tasks, world
    from django_manta import workflow
    from django_manta.states import When

    accepted = 0
    while edges > 0:
        young = [row[0] for row in world.look("SELECT id FROM manta_run ORDER BY id DESC LIMIT %s", YOUNGEST)]
        after = list(set(dice.choices(young, k=min(edges, 10))))
        several = 1 + dice.randrange(4)
        waiting = tasks.stumble.using(after=after, when=dice.choice(list(When)))
        # One by one, and in a block that inserts all of it together, some of whose parts are undone.
        is_block = dice.random() < 0.5
        with workflow("edges") if is_block else nullcontext():
            accepted += len(tasks.stumble.map([int(dice.random() < BAD_SHARE) for _ in range(3)]))
            if is_block and dice.random() < 0.3:
                with suppress(_Undone), transaction.atomic():
                    tasks.stumble.using(after=[waiting.enqueue(0)]).enqueue(0)
                    raise _Undone
            accepted += len(waiting.map([int(dice.random() < BAD_SHARE) for _ in range(several)]))
        edges -= several * len(after)
    return accepted


class _Undone(Exception):
    """What was enqueued in a part of a transaction never was."""


if __name__ == "__main__":
    django.setup()
    print(write(int(sys.argv[1]), random.Random(int(sys.argv[2]))))
