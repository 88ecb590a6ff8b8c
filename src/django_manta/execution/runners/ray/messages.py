"""
What workers, the foreman and chunks say to each other: JSON, with the version of these words in every message.

A foreman outlives the release that started it, and a worker of another release may have to ask it about its runs:
so nothing here is pickled, and whoever is spoken to in a version that it does not know says so.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django_manta.ledger import AttemptRecord, Claimed, Value, Written
from django_manta.states import Outcome, State

#: The version of all that is said. A foreman that another release started may speak another one.
PROTOCOL = 1

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class UnknownProtocol(Exception):
    """Somebody speaks in words of another version."""


def dump(message: Any) -> str:
    return _encode(message)


def say(verb: str, **facts: Any) -> str:
    """A message to a foreman."""
    return _encode({"protocol": PROTOCOL, "verb": verb, **facts})


def hear(text: str) -> dict[str, Any]:
    """A message, or an answer. Raise UnknownProtocol for what was not meant for this version."""
    message: dict[str, Any] = json.loads(text)
    if message.get("protocol") != PROTOCOL:
        raise UnknownProtocol(f"a message in protocol {message.get('protocol')!r}, not {PROTOCOL}")
    return message


def key_of(run: str, token: int) -> str:
    """
    The name of an execution where Ray is concerned. A token is unique in its database; several of those, and one that
    was restored from a backup, may meet at a foreman.
    """
    return f"{run}:{token}"


def token_of(key: str) -> int:
    return int(key.rpartition(":")[2])


# -- claims ------------------------------------------------------------------------------------------

_MOMENTS = frozenset({"enqueued_at", "run_after", "deadline", "expires_at", "started_at", "last_attempted_at"})


def claim_to_json(claim: Claimed) -> dict[str, Any]:
    """All that an executor needs. By name, so that a release that knows more fields is understood by one with fewer."""
    plain: dict[str, Any] = claim._asdict()
    plain["id"] = claim.id.hex
    for name in _MOMENTS:
        if plain[name] is not None:
            plain[name] = plain[name].isoformat()
    if claim.refused_for is not None:
        plain["refused_for"] = claim.refused_for.total_seconds()
    if claim.history:
        plain["history"] = [_attempt_to_json(attempt) for attempt in claim.history]
    plain["values"] = {run_id: list(value) for run_id, value in claim.values.items()}
    return plain


def claim_from_json(plain: Mapping[str, Any]) -> Claimed:
    kept = {name: value for name, value in plain.items() if name in Claimed._fields}
    kept["id"] = UUID(kept["id"])
    for name in _MOMENTS:
        if kept[name] is not None:
            kept[name] = datetime.fromisoformat(kept[name])
    if kept["refused_for"] is not None:
        kept["refused_for"] = timedelta(seconds=kept["refused_for"])
    kept["history"] = tuple(_attempt_from_json(attempt) for attempt in kept["history"])
    kept["values"] = MappingProxyType({run_id: Value(*value) for run_id, value in kept["values"].items()})
    return Claimed(**kept)


_ATTEMPT_FIELDS = tuple(field.name for field in fields(AttemptRecord))


def _attempt_to_json(attempt: AttemptRecord) -> dict[str, Any]:
    plain = dict(zip(_ATTEMPT_FIELDS, astuple(attempt), strict=True))
    plain["outcome"] = attempt.outcome.value
    plain["started_at"], plain["finished_at"] = attempt.started_at.isoformat(), attempt.finished_at.isoformat()
    return plain


def _attempt_from_json(plain: Mapping[str, Any]) -> AttemptRecord:
    kept = {name: plain[name] for name in _ATTEMPT_FIELDS}
    kept["outcome"] = Outcome(kept["outcome"])
    for name in ("started_at", "finished_at"):
        kept[name] = datetime.fromisoformat(kept[name])
    return AttemptRecord(**kept)


# -- outcomes ----------------------------------------------------------------------------------------


def outcome_to_json(row: Written) -> list[Any]:
    told: list[Any] = [row.outcome.value, row.next_state.value, row.duration, row.told, row.text]
    if row.delegate is not None or row.after or row.at_once:
        told += [row.delegate, [on.hex for on in row.after], row.at_once]
    return told


def outcome_from_json(run_id: UUID, token: int, told: Sequence[Any]) -> Written:
    outcome, next_state, duration, was_told, text, *waiting = told
    delegate, after, at_once = waiting or (None, (), False)
    return Written(
        run_id,
        token,
        Outcome(outcome),
        State(next_state),
        duration,
        was_told,
        text,
        delegate,
        tuple(map(UUID, after)),
        at_once,
    )


# -- frames ------------------------------------------------------------------------------------------

_LENGTH = struct.Struct("!I")


def frame(message: Any) -> bytes:
    """A message on a stream: its length, and its JSON."""
    body = _encode(message).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(body)) + body


class Inbox:
    """Puts messages together from whatever pieces a stream delivers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        self._buffer += data
        start, end = 0, len(self._buffer)
        try:
            while end - start >= _LENGTH.size:
                [length] = _LENGTH.unpack_from(self._buffer, start)
                if end - start < _LENGTH.size + length:
                    break
                body = bytes(self._buffer[start + _LENGTH.size : start + _LENGTH.size + length])
                start += _LENGTH.size + length
                yield json.loads(body.decode("utf-8", "surrogatepass"))
        finally:
            del self._buffer[:start]
