"""
``python -m chaos.caller ORDERS SEED``: takes orders, each a row of its own and a run, in one transaction.

When it does not hear whether an order was committed it looks, as any careful caller does, and takes it again if it is
not there. It prints how often it did not hear.
"""

import random
import sys

import django


def take(orders: int, dice: random.Random) -> int:
    from django.db import DatabaseError, connection, transaction

    from chaos import tasks, world

    unheard = 0
    for number in range(orders):
        while not world.number("SELECT count(*) FROM chaos_order WHERE number = %s", number):
            task = dice.choice([tasks.mark_start, tasks.mark_effect])
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    result = task.enqueue(0.001)
                    cursor.execute("INSERT INTO chaos_order (number, run_id) VALUES (%s, %s)", [number, result.id])
            except DatabaseError:
                unheard += 1
                connection.close()
    return unheard


if __name__ == "__main__":
    django.setup()
    print(take(int(sys.argv[1]), random.Random(int(sys.argv[2]))))
