"""
What workers, the foreman and chunks say to each other: JSON, with the version of these words in every message.

A foreman outlives the release that started it, and a worker of another release has to fence, adopt and settle its runs:
so nothing here is pickled, and every release understands ``attach``, ``listen``, ``fence``, ``adopt``, ``settled``,
``cancel``, ``withdraw``, ``wonder``, ``whereabouts`` and ``leave``. These may gain facts; none of theirs changes its
meaning or goes. The version is that of what is executed: a submission, and a chunk. Only who speaks the same one takes
it, so a foreman bears the version in its name.

A message is a line of parts with tabs between them; JSON has neither raw tabs nor raw line ends. The first part says
what it is, and the others are passed on as they are by whoever has no use for what is in them: a claim is written
down once, by the worker, and read once, where it is executed; and so is an outcome, the other way round.
"""

import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django_manta import payload
from django_manta.execution.runners.wire import OUTCOMES, STATES
from django_manta.ids import read_id
from django_manta.ledger import AttemptRecord, Claimed, Value, Written
from django_manta.states import Outcome, State

#: The version of submissions and chunks. A foreman that another release started may have another one.
PROTOCOL = 4


class UnknownProtocol(Exception):
    """A submission, a chunk or a claim in another version."""


#: What is raised by a message that is not as it should be.
UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, UnknownProtocol)


def dump(message: Any) -> str:
    return payload.dump(message)


def say(verb: str, *parts: str, **facts: Any) -> str:
    """A message to a foreman, with what it is to pass on."""
    return "\t".join((dump({"protocol": PROTOCOL, "verb": verb, **facts}), *parts))


def hear(text: str) -> dict[str, Any]:
    """A message, or an answer, of any version. Raise ValueError for what is none."""
    head, _, rest = text.partition("\t")
    message: dict[str, Any] = json.loads(head)
    if not isinstance(message, dict):
        raise ValueError(f"{head[:100]!r} is no message")
    message["parts"] = rest.split("\t") if rest else []
    return message


def hear_order(text: str) -> dict[str, Any]:
    """A message that says what to execute. Raise UnknownProtocol for another version."""
    message = hear(text)
    require_own(message)
    return message


def require_own(message: Mapping[str, Any]) -> None:
    if message.get("protocol") != PROTOCOL:
        raise UnknownProtocol(f"a message in protocol {message.get('protocol')!r}, not {PROTOCOL}")


def key_of(run: str, token: int) -> str:
    """
    The name of an execution where Ray is concerned. A token is unique in its database; several of those, and one that
    was restored from a backup, may meet at a foreman.
    """
    return f"{run}:{token}"


def run_of(key: str) -> str:
    return key.rpartition(":")[0]


def token_of(key: str) -> int:
    return int(key.rpartition(":")[2])


# -- claims ------------------------------------------------------------------------------------------

#: Which field stands where in a claim. It is told with the claims: another release has others.
FIELDS = Claimed._fields
_HISTORY, _VALUES = (FIELDS.index(name) for name in ("history", "values"))


#: What another release does not know yet, and what stands for it.
_ABSENT = {"history": (), "values": {}} | {
    name: value for name, value in Claimed._field_defaults.items() if name not in ("history", "values")
}


def write_claim(claim: Claimed) -> str:
    """All that an executor needs, in the order of its fields: thousands a second are sent."""
    plain: list[Any] = list(claim)
    plain[0] = claim.id.hex
    plain[_HISTORY] = [_attempt_to_json(attempt) for attempt in claim.history] if claim.history else ()
    plain[_VALUES] = {run_id: list(value) for run_id, value in claim.values.items()} if claim.values else {}
    return dump(plain)


def read_claim(written: str, names: Sequence[str] = FIELDS) -> Claimed:
    """Raise ValueError, LookupError or TypeError for what another release wrote and this one cannot read."""
    kept = json.loads(written)
    if names is not FIELDS and tuple(names) != FIELDS:
        told = dict(zip(names, kept, strict=True))
        kept = [told.get(name, _ABSENT.get(name)) for name in FIELDS]
    kept[0] = read_id(bytes.fromhex(kept[0]))
    kept[_HISTORY] = tuple(map(_attempt_from_json, kept[_HISTORY]))
    if kept[_VALUES]:
        kept[_VALUES] = {run_id: Value(*value) for run_id, value in kept[_VALUES].items()}
    return Claimed._make(kept)


_ATTEMPT_FIELDS = tuple(field.name for field in fields(AttemptRecord))


def _attempt_to_json(attempt: AttemptRecord) -> dict[str, Any]:
    plain = dict(zip(_ATTEMPT_FIELDS, astuple(attempt), strict=True))
    plain["outcome"] = attempt.outcome.value
    plain["started_at"], plain["finished_at"] = attempt.started_at.isoformat(), attempt.finished_at.isoformat()
    return plain


def _attempt_from_json(plain: Mapping[str, Any]) -> AttemptRecord:
    # What another release did not write is empty.
    kept = {name: plain.get(name, "") for name in _ATTEMPT_FIELDS}
    kept["outcome"] = Outcome(kept["outcome"])
    for name in ("started_at", "finished_at"):
        kept[name] = datetime.fromisoformat(kept[name])
    return AttemptRecord(**kept)


# -- outcomes ----------------------------------------------------------------------------------------


def outcome_to_json(row: Written) -> list[Any]:
    if row.is_well:
        return [row.duration, row.told, row.text]
    told: list[Any] = [row.outcome._value_, row.next_state._value_, row.duration, row.told, row.text]
    if row.delegate is not None or row.after or row.at_once:
        told += [row.delegate, [on.hex for on in row.after], row.at_once]
    return told


def outcome_from_json(run_id: UUID, token: int, told: Sequence[Any]) -> Written:
    if len(told) == _WELL:
        duration, was_told, text = told
        return Written(run_id, token, Outcome.SUCCESSFUL, State.SUCCESSFUL, duration, was_told, text, True)
    outcome, next_state, duration, was_told, text, *waiting = told
    # A later release may add more.
    delegate, after, at_once, *_ = waiting or (None, (), False)
    return Written(
        run_id,
        token,
        OUTCOMES[outcome],
        STATES[next_state],
        duration,
        was_told,
        text,
        False,
        delegate,
        tuple(map(UUID, after)),
        at_once,
    )


#: How much of an outcome travels if all is well.
_WELL = 3


# -- events ------------------------------------------------------------------------------------------

#: Stands between two events in an answer. No event has a raw tab in it; to JSON, a tab between two values is a blank.
_BETWEEN = ",\t"

_KEY = re.compile(r'\["[a-z]+","([0-9a-f]{32}:[0-9]+)"')


def check_end(event: str, key: str) -> None:
    """Raise ValueError unless this is the event of how the execution ``key`` ended."""
    told = json.loads(event)
    if not isinstance(told, list) or told[:2] != ["ended", key] or [type(part) for part in told[2:3]] != [bool]:
        raise ValueError(f"not the end of {key}: {event[:200]!r}")


def write_events(events: Sequence[str]) -> str:
    """Events, each JSON already, as one JSON array."""
    return f"[{_BETWEEN.join(events)}]"


def read_events(text: str) -> list[Any]:
    """The events of an answer. One that cannot be read is given as the text that it is, beside the others."""
    try:
        told = json.loads(text)
        if isinstance(told, list):
            return told
    except ValueError:
        pass
    return [_read_event(piece) for piece in text.removeprefix("[").removesuffix("]").split(_BETWEEN)]


def _read_event(piece: str) -> Any:
    try:
        return json.loads(piece)
    except ValueError:
        return piece


def kind_of(event: Any) -> str:
    """What an event tells, even if it is garbled and ``key_in`` knows of which execution."""
    return event[2:].partition('"')[0] if isinstance(event, str) else str(event[0])


def key_in(event: Any) -> str | None:
    """Of which execution an event tells, even if it is garbled; None if it does not say."""
    if isinstance(event, str):
        found = _KEY.match(event)
        return found[1] if found else None
    key = event[1] if isinstance(event, list) and len(event) > 1 else None
    return key if isinstance(key, str) and key.rpartition(":")[2].isdecimal() else None


# -- lines -------------------------------------------------------------------------------------------


def to_bytes(text: str) -> bytes:
    # A text may hold half of a pair of surrogates, where a task's words are passed on.
    return text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def readable(data: bytes) -> str:
    """What may be no message of ours, as far as it is text."""
    return data.decode("utf-8", "replace")


def line(*parts: str) -> bytes:
    """A message on a stream."""
    return to_bytes("\t".join(parts)) + b"\n"


def keep_alive(connection: socket.socket) -> None:
    """Notice within seconds that nobody is at the other end any more, also where nothing says so."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Inbox:
    """Puts lines together from whatever pieces a stream delivers."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        #: The bytes of a line that has not ended.
        self.size = 0

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    def feed(self, data: bytes) -> Iterator[str]:
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = b"".join((*self._pieces, ended[0]))
            self._pieces.clear()
            self.size = 0
        if rest:
            self._pieces.append(rest)
            self.size += len(rest)
        return map(from_bytes, ended)
