"""
What a Ray job is given, and what it tells: texts that nobody else can write.

A claim travels on the command line of its job, an outcome back as a line of the job's log. Both are compressed, safe in
a URL and in a shell, and signed with the SECRET_KEY; neither is hidden from who can read Ray's dashboard.
"""

from typing import Any, NamedTuple
from uuid import UUID

from django.core.signing import BadSignature, Signer

from django_manta.exceptions import BadTaskSignature
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Claimed, Written

#: Linux takes 128 KiB as one word of a command, and Ray's shell gets the whole command as one.
LARGEST_CHARACTERS = 120 * 1024

#: What begins the lines of a log that are ours: the task begins, and its outcome.
BEGUN = "manta: begun "
ENDED = "manta: ended "

#: How the log of an attempt that was a job is named.
LOG_REF = "ray-job:"

_claims = "django_manta.job.claim"
_outcomes = "django_manta.job.outcome"


def name_of(run_id: UUID, token: int) -> str:
    """The job of an execution, and of no other: whoever submits it, and however often, there is one."""
    return f"manta-{run_id.hex}-{token}"


class TooLarge(ValueError):
    """The arguments of a run are more than a command line takes."""


class Envelope(NamedTuple):
    claim: Claimed
    timeout: float | None


def seal(claim: Claimed, timeout: float | None) -> str:
    """Raise TooLarge."""
    content = [messages.PROTOCOL, messages.FIELDS, messages.write_claim(claim), timeout]
    envelope = Signer(salt=_claims).sign_object(content, compress=True)
    if len(envelope) > LARGEST_CHARACTERS:
        raise TooLarge(
            f"The arguments of a Ray job travel on its command line, which takes {LARGEST_CHARACTERS // 1024} KiB; "
            f"these are {len(envelope) // 1024} KiB. Store them, and give their place."
        )
    return envelope


def unseal(envelope: str) -> Envelope:
    """What to execute. Raise BadTaskSignature, or UnknownProtocol."""
    protocol, *_ = _open(envelope, _claims)
    if protocol != messages.PROTOCOL:
        raise messages.UnknownProtocol(f"an envelope in protocol {protocol!r}, not {messages.PROTOCOL}")
    return unseal_any(envelope)


def unseal_any(envelope: str) -> Envelope:
    """What a job of any release was given. Raise BadTaskSignature, or UnknownProtocol if it cannot be understood."""
    protocol, *content = _open(envelope, _claims)
    try:
        names, written, timeout, *_ = content
        return Envelope(messages.read_claim(written, names), timeout)
    except (ValueError, LookupError, TypeError) as error:
        raise messages.UnknownProtocol(f"an envelope in protocol {protocol!r}: {error}") from None


def begun(key: str) -> str:
    """The line that says that nothing but the task itself comes now."""
    return f"{BEGUN}{key}\n"


def ended(key: str, row: Written | None, *, settled: bool) -> str:
    """The line that tells an outcome. Without one: the run was no longer this execution's."""
    content = [key, settled, None if row is None else messages.outcome_to_json(row)]
    return f"{ENDED}{Signer(salt=_outcomes).sign_object(content, compress=True)}\n"


class Told(NamedTuple):
    """What the log of a job tells of its run."""

    begun: bool
    ended: bool
    settled: bool
    row: Written | None


def read(log: str, claim: Claimed) -> Told:
    """What counts is what was told last, of this execution and under our signature."""
    key = messages.key_of(claim.id.hex, claim.token)
    place = log.rfind(ENDED)
    while place >= 0:
        line = log[place + len(ENDED) :].partition("\n")[0]
        try:
            of, settled, row = _open(line.strip(), _outcomes)
            if of == key:
                outcome = None if row is None else messages.outcome_from_json(claim.id, claim.token, row)
                return Told(True, True, settled, outcome)
        except (BadTaskSignature, ValueError, KeyError, TypeError):
            # Not ours; or the words of another release, which nobody here understands.
            pass
        place = log.rfind(ENDED, 0, place)
    return Told(begun(key) in log, False, False, None)


def without_marks(log: str) -> str:
    """What the task and Ray printed."""
    lines = log.split("\n")
    return "\n".join(line for line in lines if not line.startswith((BEGUN, ENDED, "Running entrypoint for job ")))


def printed(log: str) -> str:
    """What the task printed, as far as it is there."""
    _, begun, rest = log.rpartition(BEGUN)
    return without_marks(rest.partition("\n")[2] if begun else rest)


def _open(text: str, salt: str) -> Any:
    try:
        return Signer(salt=salt).unsign_object(text)
    except (BadSignature, ValueError) as error:
        raise BadTaskSignature(f"It was not written with this project's SECRET_KEY: {error}") from None
