"""
Answers every NOTIFY by another: ``python -m benchmarks.echo`` is the other end of a bare round trip.

It says "ready" once it listens, and leaves when its standard input closes.
"""

import os
import selectors
import sys

import django

PING, PONG = "bench_ping", "bench_pong"


def main() -> None:
    django.setup()
    from benchmarks import scratch

    with scratch.plain_connection() as connection, selectors.DefaultSelector() as selector:
        connection.execute(f"LISTEN {PING}")
        print("ready", flush=True)
        selector.register(connection.fileno(), selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            moved = {key.fileobj for key, _ in selector.select()}
            if sys.stdin in moved and not os.read(sys.stdin.fileno(), 1):
                return
            # All of them first: as long as one hears, one cannot speak on the same connection.
            for _ in list(connection.notifies(timeout=0)):
                connection.execute(f"NOTIFY {PONG}")


if __name__ == "__main__":
    main()
