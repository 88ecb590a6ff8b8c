"""
Does one thing to the ledger at a time, each in a process of its own that may be killed in the middle of it.

Started by the storm ``faults``, with DATABASE_URL of its proxy. It reads a line ``{"verb": …, "given": {…}}``, forks a
process that connects, prints ``{"pid": …}``, and waits for the line ``go``; then that process does it, and
``{"answer": …}``, ``{"error": …}`` or ``{"signal": …}`` is printed: what it returned, the exception that reached the
caller, or the signal that ended it.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import django

django.setup()

from django.db import Error as DatabaseError  # noqa: E402
from django.db import connections  # noqa: E402
from django.tasks import task_backends  # noqa: E402

from chaos import tasks  # noqa: E402
from django_manta import resolve, workflow  # noqa: E402
from django_manta.ledger import Ledger, Settlement, own_session  # noqa: E402
from django_manta.ledger.claiming import Along, Wanted  # noqa: E402
from django_manta.ledger.marks import Marks  # noqa: E402
from django_manta.result import get_result  # noqa: E402
from django_manta.states import ENDS, Outcome, State  # noqa: E402
from django_manta.worker import caretaker  # noqa: E402

type Verb = Callable[[Ledger, dict[str, Any]], Any]


# -- from an application: on Django's connection -----------------------------------------------------


def enqueue(ledger: Ledger, given: dict[str, Any]) -> Any:
    return tasks.trial.enqueue(given["number"]).id


def enqueue_many(ledger: Ledger, given: dict[str, Any]) -> Any:
    return tasks.trial.map(given["numbers"]).ids and None


def enqueue_waiting(ledger: Ledger, given: dict[str, Any]) -> Any:
    return tasks.trial.using(after=[get_result(each) for each in given["after"]]).enqueue(given["number"]).id


def enqueue_workflow(ledger: Ledger, given: dict[str, Any]) -> Any:
    first, second = given["numbers"]
    with workflow("faults"):
        before = tasks.trial.enqueue(first)
        tasks.trial.using(after=[before]).enqueue(second)


def release(ledger: Ledger, given: dict[str, Any]) -> Any:
    Ledger().release([UUID(given["run"])])


def retry(ledger: Ledger, given: dict[str, Any]) -> Any:
    get_result(given["run"]).retry()


def cancel(ledger: Ledger, given: dict[str, Any]) -> Any:
    get_result(given["run"]).cancel(cascade=given["cascade"])


def resolve_promise(ledger: Ledger, given: dict[str, Any]) -> Any:
    resolve(given["run"], 5)


# -- from a worker: on a connection of its own -------------------------------------------------------


def claim(ledger: Ledger, given: dict[str, Any]) -> Any:
    return [each.token for each in ledger.claim(given["worker"], [given["queue"]], 10)]


def settle(ledger: Ledger, given: dict[str, Any]) -> Any:
    ledger.settle(_settlements(given), given["worker"])


def settle_and_claim(ledger: Ledger, given: dict[str, Any]) -> Any:
    marks = Marks()
    along = Along.of([Wanted(given["worker"], [given["queue"]], 10)], marks)
    assert along is not None
    if ledger.settle_and_claim(_settlements(given), given["worker"], along, marks) is None:
        ledger.settle(_settlements(given), given["worker"])


def recover(ledger: Ledger, given: dict[str, Any]) -> Any:
    caretaker.recover(task_backends["default"], ledger)


def tell(ledger: Ledger, given: dict[str, Any]) -> Any:
    caretaker.spread_the_word(task_backends["default"], ledger)


def expire(ledger: Ledger, given: dict[str, Any]) -> Any:
    ledger.expire()


def promote(ledger: Ledger, given: dict[str, Any]) -> Any:
    ledger.promote()


def prune(ledger: Ledger, given: dict[str, Any]) -> Any:
    for state in sorted(ENDS):
        ledger.prune(state, timedelta(0))


def _settlements(given: dict[str, Any]) -> list[Settlement]:
    return [
        Settlement(
            run_id=UUID(each["run"]),
            token=each["token"],
            outcome=Outcome(each["outcome"]),
            next_state=State(each["state"]),
            delay=each.get("delay"),
            result=each.get("result"),
            result_signature=each.get("signature", ""),
            after=tuple(UUID(run) for run in each.get("after", ())),
        )
        for each in given["settlements"]
    ]


VERBS: dict[str, Verb] = {
    "enqueue": enqueue,
    "enqueue_many": enqueue_many,
    "enqueue_waiting": enqueue_waiting,
    "enqueue_workflow": enqueue_workflow,
    "release": release,
    "retry": retry,
    "cancel": cancel,
    "resolve": resolve_promise,
    "claim": claim,
    "settle": settle,
    "settle_and_claim": settle_and_claim,
    "recover": recover,
    "tell": tell,
    "expire": expire,
    "promote": promote,
    "prune": prune,
}

#: Those that a worker says on a connection of its own.
OF_WORKERS = {"claim", "settle", "settle_and_claim", "recover", "tell", "expire", "promote", "prune"}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        pid, go, heard = _fork(asked["verb"], asked["given"])
        with os.fdopen(heard) as lines:
            # The process has connected, so that nothing of that is counted, or it has failed to.
            first = lines.readline()
            _say({"pid": pid})
            sys.stdin.readline()
            os.write(go, b"g")
            os.close(go)
            answer = first if first != "ready\n" else lines.readline()
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            _say({"signal": os.WTERMSIG(status)})
        else:
            _say(json.loads(answer or '{"error": "nothing", "text": "it ended without a word", "expected": false}'))


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


def _fork(verb: str, given: dict[str, Any]) -> tuple[int, int, int]:
    """The process, what tells it to go on, and what it says."""
    waits, go = os.pipe()
    heard, says = os.pipe()
    pid = os.fork()
    if pid:
        os.close(waits)
        os.close(says)
        return pid, go, heard
    os.close(go)
    os.close(heard)
    with os.fdopen(says, "w") as voice:
        try:
            words = _do(VERBS[verb], given, verb in OF_WORKERS, waits, voice)
        except BaseException as error:
            words = {
                "error": type(error).__name__,
                "text": "".join(traceback.format_exception(error))[-2000:],
                "expected": isinstance(error, DatabaseError),
            }
        voice.write(json.dumps(words) + "\n")
        voice.flush()
    os._exit(0)


def _do(verb: Verb, given: dict[str, Any], is_worker: bool, waits: int, voice: Any) -> dict[str, Any]:
    if is_worker:
        ledger = Ledger(own_session())
        ledger.next_due()
    else:
        connections["default"].ensure_connection()
        ledger = Ledger()
    voice.write("ready\n")
    voice.flush()
    os.read(waits, 1)
    return {"answer": verb(ledger, given)}


if __name__ == "__main__":
    main()
