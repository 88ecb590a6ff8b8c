"""
``python -m chaos.writer EDGES SEED``: enqueues runs that wait for young ones, until there are as many edges.

Prints how many runs were accepted.
"""

import random
import sys

import django

#: What is waited for is chosen among so many of the youngest runs: most of them are being finished.
YOUNGEST = 200

#: So many of them fail.
BAD_SHARE = 0.03


def write(edges: int, dice: random.Random) -> int:
    from chaos import tasks, world
    from django_manta.states import When

    accepted = 0
    while edges > 0:
        young = [row[0] for row in world.look("SELECT id FROM manta_run ORDER BY id DESC LIMIT %s", YOUNGEST)]
        accepted += len(tasks.stumble.map([int(dice.random() < BAD_SHARE) for _ in range(3)]))
        after = list(set(dice.choices(young, k=min(edges, 10))))
        several = 1 + dice.randrange(4)
        when = dice.choice(list(When))
        waiting = tasks.stumble.using(after=after, when=when)
        accepted += len(waiting.map([int(dice.random() < BAD_SHARE) for _ in range(several)]))
        edges -= several * len(after)
    return accepted


if __name__ == "__main__":
    django.setup()
    print(write(int(sys.argv[1]), random.Random(int(sys.argv[2]))))
