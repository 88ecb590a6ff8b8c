"""
The entry point of a Ray job: ``python -m django_manta.execution.job … ENVELOPE`` executes one run.

    load the project ─▶ open the envelope ─▶ ask whether it is still wanted ─▶ execute ─▶ settle ─▶ tell

The job settles its run itself, fenced by its token alone: the worker that submitted it may be gone. Where it cannot
reach the database the worker settles what the last line of the job's log tells. A job that ends before it has begun
the task leaves no line that says so, and the run is given back.

SIGTERM says that this process is to end, and not why: somebody has stopped the job, or its node is going down. So an
execution that it has interrupted is not settled here. Ray knows whether the job was stopped, and the worker asks Ray.
"""

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_manta.ledger import Claimed, Ledger, Written

logger = logging.getLogger("django_manta")

#: The exit code of a job that could not begin (EX_CONFIG), and of one whose task failed.
REFUSED, FAILED = 78, 1

#: The exit code of a job that ended because of SIGTERM, as a shell would tell it.
TERMINATED = 128 + signal.SIGTERM

#: A database that has not answered after so long is one that cannot be reached from here.
DATABASE_SECONDS = 15.0

#: A row that somebody holds is tried again after so long.
LOCKED_SECONDS = 0.05

#: The longest line of the log, compressed and signed, by which an outcome is told. Of a log the worker reads the last
#: 6 MiB (dashboard.TAIL_BYTES), in which it has to stand whole.
LARGEST_LINE_BYTES = 4 * 1024 * 1024

#: An outcome that is too large for the log is tried to be settled for so long after the database was lost.
OUTAGE_SECONDS, OUTAGE_PAUSE_SECONDS = 600.0, 2.0


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        _load_django(given.settings, given.path.split(os.pathsep) if given.path else [])
        from django_manta.execution import envelope

        claim, timeout = envelope.unseal(given.envelope)
    except Exception:
        # Nothing has begun. Another release may know it, and whoever reads the log should see why this one did not.
        traceback.print_exc()
        return REFUSED
    return _Job(claim, timeout, given.log_ref).execute()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m django_manta.execution.job", description="Execute one run.")
    parser.add_argument("--settings", required=True, help="The project's settings, unless the environment names them.")
    parser.add_argument("--path", default="", help="Where the worker finds the project's modules.")
    parser.add_argument("--log-ref", default="", help="How the attempt's log is found.")
    parser.add_argument("envelope")
    return parser


def _load_django(settings: str, path: list[str]) -> None:
    sys.path += [place for place in path if place not in sys.path]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
    import django

    django.setup()
    from django_manta.task import load_tasks

    load_tasks()
    from django_manta.execution.runners.child import hush_django

    hush_django()


class _Job:
    """One execution, from the envelope to the last line of the log."""

    def __init__(self, claim: "Claimed", timeout: float | None, log_ref: str) -> None:
        from django_manta.execution.output import Recorder
        from django_manta.execution.runners.ray import messages

        self.claim = claim
        self.timeout = timeout
        self.log_ref = log_ref
        self.key = messages.key_of(claim.id.hex, claim.token)
        self.recorder = Recorder(os.memfd_create("manta-output"))
        #: The database has answered from here.
        self._has_database = False

    def execute(self) -> int:
        from django_manta.execution import envelope
        from django_manta.execution.executor import execute
        from django_manta.execution.runners import wire
        from django_manta.states import Outcome

        if self._ask(self._is_wanted) is False:
            # It was given back, or taken over and ended: a submission that came too late.
            self._tell(envelope.ended(self.key, None, settled=False))
            return 0
        self._prepare()
        self._tell(envelope.begun(self.key))
        execution = execute(
            self.claim,
            executor=f"{socket.gethostname()}:{os.getpid()}",
            output=self.recorder.tail,
            adoptable=True,
            log_ref=lambda outcome: self.log_ref,
        )
        faulthandler.cancel_dump_traceback_later()
        if execution.settlement is None:
            self._tell(envelope.ended(self.key, None, settled=False))
            return 0
        row = wire.write(execution.settlement)
        if _terminated and row.outcome is Outcome.INTERRUPTED:
            self._tell(envelope.ended(self.key, row, settled=False))
            return TERMINATED
        settled = execution.settled or self._ask(lambda ledger: self._settle(ledger, row)) is True
        self._tell_outcome(row, settled=settled)
        return FAILED if row.outcome in (Outcome.FAILED, Outcome.TIMED_OUT) else 0

    def _prepare(self) -> None:
        from django_manta.execution import executor, limits
        from django_manta.execution.runners.flights import GRACE_SECONDS

        limits.let_forks_be_plain()
        self.recorder.install()
        # The interpreter's last words belong into the job's log, which outlives this process.
        faulthandler.enable(sys.__stderr__ or 2)
        signal.signal(signal.SIGTERM, _stop)
        if self.timeout is not None:
            executor.on_returned = lambda token: faulthandler.cancel_dump_traceback_later()
            # Whatever the task holds on to, the interpreter included: this ends it, and says where it was.
            faulthandler.dump_traceback_later(self.timeout + GRACE_SECONDS, exit=True, file=sys.__stderr__ or 2)

    def _tell(self, line: str) -> None:
        """On a line of its own, after all that was printed."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os.write(1, b"\n")
        data = line.encode()
        while data:
            data = data[os.write(1, data) :]

    def _tell_outcome(self, row: "Written", *, settled: bool) -> None:
        from django_manta.execution import envelope

        size = len(row.text)
        if settled:
            # What is settled already need not travel whole.
            row.text = ""
        line = envelope.ended(self.key, row, settled=settled)
        if len(line) > LARGEST_LINE_BYTES:
            if self._has_database and self._settle_after_the_outage(row):
                self._tell_outcome(row, settled=True)
                return
            line = envelope.ended(self.key, _too_large(row, size, len(line)), settled=False)
        self._tell(line)

    def _settle_after_the_outage(self, row: "Written") -> bool:
        until = time.monotonic() + OUTAGE_SECONDS
        while time.monotonic() < until:
            time.sleep(OUTAGE_PAUSE_SECONDS)
            if (settled := self._ask(lambda ledger: self._settle(ledger, row))) is not None:
                return settled
        return False

    # -- the database ----------------------------------------------------------------------------

    def _is_wanted(self, ledger: "Ledger") -> bool:
        found = ledger.fetch([self.claim.id], history=False)
        return bool(found) and found[0].token == self.claim.token

    def _settle(self, ledger: "Ledger", row: "Written") -> bool:
        """Whether the ledger has it, or wants nothing of it any more."""
        from django_manta.execution import announce
        from django_manta.execution.admission import backend_of
        from django_manta.ledger import house
        from django_manta.ringing import UNKNOWN
        from django_manta.states import State

        while (settled := ledger.settle([row], None)).busy:
            time.sleep(LOCKED_SECONDS)
        backend = backend_of(self.claim.backend)
        if settled.ready or State.READY in settled.moved.values():
            house.ring(ledger, house.channel_of(backend.config.cluster), UNKNOWN)
        announce.ended(backend, settled.ended, ledger)
        return not settled.refused

    def _ask[Answer](self, question: "Callable[[Ledger], Answer]") -> Answer | None:
        """What the ledger answers; None if it cannot be reached."""
        from django.db import Error as DatabaseError

        from django_manta.execution.admission import backend_of
        from django_manta.ledger import Ledger, own_session

        answers: list[Answer] = []

        def ask() -> None:
            session = own_session(backend_of(self.claim.backend).database)
            try:
                answers.append(question(Ledger(session)))
            except DatabaseError as error:
                logger.warning("Run %s: its job cannot reach the database: %s", self.claim.id, str(error).strip())
            finally:
                session.close()

        # A host that does not answer is tried for minutes. What it does after we have left is fenced like all else.
        asking = threading.Thread(target=ask, name="manta-ledger", daemon=True)
        asking.start()
        asking.join(DATABASE_SECONDS)
        self._has_database = self._has_database or bool(answers)
        return answers[0] if answers else None


def _too_large(row: "Written", characters: int, compressed: int) -> "Written":
    from django_manta.ledger import rows

    mebibyte = 2**20
    message = (
        f"The outcome is {characters / mebibyte:.1f} MiB of text, {compressed / mebibyte:.1f} MiB compressed. Its Ray "
        f"job could not reach the database, and through its log at most {LARGEST_LINE_BYTES // mebibyte} MiB are sent. "
        "Let the job reach the database (see RUNTIME_ENVS), or keep the result elsewhere and return where it is."
    )
    return rows.written(rows.failed_instead(row, message))


_terminated = False


def _stop(number: int, stack: Any) -> None:
    """Ray stops a job by SIGTERM, and kills it a few seconds later. Whoever stops a node does the same."""
    from django_manta.execution import limits
    from django_manta.states import Outcome

    global _terminated
    _terminated = True
    limits.interrupt(Outcome.INTERRUPTED, "The process of its Ray job was told to end.")


if __name__ == "__main__":
    sys.exit(main())
