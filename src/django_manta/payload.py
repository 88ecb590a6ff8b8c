"""
What travels in a row: JSON text, exactly as encoded, and the signature that vouches for it.

Encoding is strict at the door. Whatever would come back different from what went in (NaN, integer
keys), or could not be stored at all (NUL, lone surrogates), is refused with the place inside the
structure, so that nothing is changed in silence and nothing fails later in a worker.

Signing is Django's (``SECRET_KEY`` with its fallbacks), salted with the cluster's name. The
signature covers everything in the row that decides what runs and how: a row written or altered by
hand runs nothing.
"""

import hashlib
import json
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from hmac import compare_digest
from math import isfinite
from typing import Any, NamedTuple

from django.core.signing import Signer
from django.utils.crypto import salted_hmac

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None

#: Deeper structures are refused: json, and every tool that reads the row, recurses.
MAX_DEPTH = 200

_TOO_DEEP = "JSON that is nested too deep to be read."

#: Arguments and results of more bytes, as the JSON in UTF-8 that is stored, are refused. Arguments pass through the
#: worker that claims them; a result is written by the process that made it.
ARGUMENTS_LIMIT = 16 * 1024 * 1024
RESULT_LIMIT = 64 * 1024 * 1024

_MIB = 1024 * 1024

#: What the signed message is made of. A new kind of content gets a new version.
SIGNATURE_VERSION = "1"

_plainly = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encoder() -> Callable[[Any], str]:
    """
    ``_plainly.encode`` for what ``normalize`` returned, in a third of the time.

    json makes its encoder in C anew for each text, which takes longer than to use it. What it is made of is no
    public interface: where it does not write what it should, or is not there, we do without.
    """
    trial = [{"a": [1, 1.5, True, None, "\u00e9\n"]}, {}, []]
    try:
        write = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, _plainly.default, json.encoder.encode_basestring, None, ":", ",", False, False, False
        )
        if "".join(write(trial, 0)) == _plainly.encode(trial):
            return lambda value: "".join(write(value, 0))
    except (AttributeError, TypeError):
        pass
    return _plainly.encode


_encode = _encoder()
_decode = json.JSONDecoder().raw_decode


class HoldsReference(TypeError):
    """A result, or a group of them, where only a value can be kept."""


class _Refusal(Exception):
    """Carries the path from the refused value outwards while the walk unwinds."""

    def __init__(self, error: type[Exception], reason: str) -> None:
        super().__init__(reason)
        self.error = error
        self.reason = reason
        self.path: list[str] = []


def normalize(value: Any, place: str = "value") -> Any:
    """
    The JSON-compatible copy of ``value`` that a reader of the stored text will get back.

    Tuples and other sequences become lists, mappings become dicts, UTF-8 bytes become text, as in
    Django's own backends. Raise TypeError or ValueError naming the place of what cannot be kept.
    """
    try:
        return _normalized(value, place)
    except HoldsReference as error:
        raise TypeError(str(error)) from None


def _normalized(value: Any, place: str) -> Any:
    """The same, with an error of its own for what an argument may hold."""
    try:
        return _normalize(value, 0)
    except _Refusal as refusal:
        where = place + "".join(reversed(refusal.path))
        raise refusal.error(f"{refusal.reason} (at {where})") from None


def encode(value: Any, place: str = "value") -> str:
    """``value`` as JSON text. Raise TypeError or ValueError as ``normalize`` does."""
    return dump(normalize(value, place), place)


def dump(normalized: Any, place: str = "value") -> str:
    """JSON text of what ``normalize`` returned."""
    if normalized is None:  # what most tasks return
        return "null"
    try:
        return _encode(normalized)
    except ValueError as error:
        # An integer of more digits than Python converts (sys.set_int_max_str_digits).
        raise ValueError(f"Unsupported value: {error} (in {place})") from None


def size_of(text: str) -> int:
    """The bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def refuse_large(text: str, limit: int, what: str) -> None:
    """Raise ValueError if ``text``, which is ``what`` as JSON, has more than ``limit`` bytes in UTF-8."""
    # A character has four bytes at most.
    if 4 * len(text) > limit and (size := size_of(text)) > limit:
        raise ValueError(
            f"{what} {size / _MIB:,.1f} MiB of JSON ({size:,} bytes), and at most {limit // _MIB} MiB are stored. Keep "
            "the data elsewhere (a model, a file, a storage), and give where it is."
        )


def decode(text: str) -> Any:
    """The value of a stored JSON text. Raise ValueError, also for one that no process can read for its depth."""
    if text == "{}":  # the metadata of most runs
        return {}
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


class Arguments(NamedTuple):
    """Normalized arguments, and the texts that are stored."""

    args: list[Any]
    kwargs: dict[str, Any]
    #: Both as JSON: ``[[…], {…}]``. None stands for the value of another run.
    text: str
    #: Where the values of which runs are filled in: ``[[[0, 1, "key"], "run id"], …]``, or None.
    references: str | None = None
    #: The runs they refer to.
    waits_for: tuple[str, ...] = ()


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """
    Arguments as they are stored. A result in them, or a group of results, becomes a reference to its value. Raise
    ValueError for more than ARGUMENTS_LIMIT bytes.
    """
    if not _is_sequence(args):
        raise TypeError(f"args must be a list or tuple of positional arguments, not {args!r}.")
    if not isinstance(kwargs, (dict, Mapping)):
        raise TypeError(f"kwargs must be a mapping of keyword arguments, not {kwargs!r}.")
    try:
        return _encode_arguments(args, kwargs)
    except HoldsReference:
        found: list[tuple[list[int | str], str]] = []
        args, kwargs = _take_out(args, [0], found), _take_out(kwargs, [1], found)
        plain = _encode_arguments(args, kwargs)
        waits_for = tuple(dict.fromkeys(run_id for _, run_id in found))
        return plain._replace(references=_encode(found), waits_for=waits_for)


def _encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    kept_args: list[Any] = _normalized(args, "args")
    kept_kwargs: dict[str, Any] = _normalized(kwargs, "kwargs")
    text = dump([kept_args, kept_kwargs], "arguments")
    refuse_large(text, ARGUMENTS_LIMIT, "The arguments are")
    return Arguments(kept_args, kept_kwargs, text)


def _take_out(value: Any, path: list[int | str], found: list[tuple[list[int | str], str]]) -> Any:
    """``value`` with None where a result was, and where that was."""
    referred = references_in(value)
    if isinstance(referred, str):
        found.append((path, referred))
        return None
    if referred is not None:
        found += [([*path, place], run_id) for place, run_id in enumerate(referred)]
        return [None] * len(referred)
    if len(path) > MAX_DEPTH:
        # Most likely inside itself. Whoever encodes the rest refuses it, and names the place.
        return value
    if isinstance(value, Mapping):
        return {key: _take_out(item, [*path, key], found) for key, item in value.items()}
    if _is_sequence(value):
        return [_take_out(item, [*path, place], found) for place, item in enumerate(value)]
    return value


def references_in(value: Any) -> str | list[str] | None:
    """The id of a result, the ids of a group of results, or None for anything else."""
    refer = getattr(type(value), "manta_references", None)
    referred: str | list[str] | None = None if refer is None else refer(value)
    return referred


def fill_in(args: list[Any], kwargs: dict[str, Any], references: str, value_of: Callable[[str], Any]) -> None:
    """Put values where the references say. The arguments are changed."""
    for path, run_id in decode(references):
        place: Any = [args, kwargs]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value_of(run_id)


class Pointer(NamedTuple):
    """Instead of a value: the run, or the runs, whose values are meant, by id."""

    to: str | list[str]

    @property
    def ids(self) -> list[str]:
        return [self.to] if isinstance(self.to, str) else self.to


def unfold(run_id: str, read: Callable[[str], Any]) -> Any:
    """
    The value of a run, by way of those that it delegated to. ``read`` gives the value of a run, or a Pointer.

    Without recursion: delegation goes to any depth, and Python does not.
    """
    values: dict[str, Any] = {}
    pointers: dict[str, Pointer] = {}
    left = [run_id]
    while left:
        each = left[-1]
        if each not in values:
            pointer = pointers.get(each)
            if pointer is None:
                found = read(each)
                if isinstance(found, Pointer):
                    pointers[each] = found
                    left += [child for child in found.ids if child not in values]
                    continue
                values[each] = found
            elif missing := [child for child in pointer.ids if child not in values]:
                raise LookupError(f"Run {each} delegated, by way of run {missing[0]}, to itself.")
            elif isinstance(pointer.to, str):
                values[each] = values[pointer.to]
            else:
                values[each] = [values[child] for child in pointer.to]
        left.pop()
    return values[run_id]


def _is_sequence(args: Any) -> bool:
    # The plain types first: asking an abstract class costs as much as all the rest.
    if isinstance(args, (list, tuple)):
        return True
    return isinstance(args, Sequence) and not isinstance(args, (str, bytes, Mapping))


def decode_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    # As we wrote it: there is no space around it that would have to be looked for.
    try:
        [args, kwargs], _ = _decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return args, kwargs


def plain_numbers(value: Any) -> Any:
    """A normalized value with its floats as PostgreSQL's jsonb gives them back: no exponents, no minus zero."""
    if type(value) is float:
        if value == 0:
            return 0.0
        return int(Decimal(repr(value))) if abs(value) >= 1e16 else value
    if type(value) is list:
        return [plain_numbers(item) for item in value]
    if type(value) is dict:
        return {key: plain_numbers(item) for key, item in value.items()}
    return value


def _normalize(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return _checked_text(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        if not isfinite(value):
            raise _Refusal(ValueError, f"Unsupported value: {value} has no place in JSON")
        return value
    if depth >= MAX_DEPTH:
        raise _Refusal(ValueError, f"Unsupported value: nested more than {MAX_DEPTH} deep, or inside itself")
    if kind is list or kind is tuple:
        return _normalize_items(value, depth)
    if kind is dict:
        return _normalize_mapping(value, depth)
    return _normalize_unusual(value, depth)


def _normalize_items(items: Sequence[Any], depth: int) -> list[Any]:
    kept = []
    index = 0
    try:
        for index, item in enumerate(items):  # noqa: B007 (the refusal below names it)
            kept.append(_normalize(item, depth + 1))
    except _Refusal as refusal:
        refusal.path.append(f"[{index}]")
        raise
    return kept


def _normalize_mapping(mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    kept = {}
    key: Any = None
    try:
        for key, item in mapping.items():
            if not isinstance(key, str):
                raise _Refusal(TypeError, f"Unsupported type: key {key!r} is {type(key)}, and JSON keys are strings")
            kept[_checked_text(str.__str__(key))] = _normalize(item, depth + 1)
    except _Refusal as refusal:
        refusal.path.append(f"[{_short(key)}]")
        raise
    return kept


def _normalize_unusual(value: Any, depth: int) -> Any:
    """Subclasses of the plain types, and the other collections Django's backends accept."""
    if hasattr(type(value), "manta_references"):
        raise _Refusal(
            HoldsReference,
            "Unsupported value: a result can be an argument, or be returned itself; several as gather(*results)",
        )
    match value:
        case Mapping():
            return _normalize_mapping(value, depth)
        case bytes():
            try:
                return _checked_text(value.decode())
            except UnicodeDecodeError:
                raise _Refusal(ValueError, f"Unsupported value: {type(value)} that is not UTF-8") from None
        case str():
            return _checked_text(str.__str__(value))
        case int():
            return int.__int__(value)
        case float():
            return _normalize(float.__float__(value), depth)
        case Sequence():
            return _normalize_items(value, depth)
        case _:
            raise _Refusal(TypeError, f"Unsupported type: {type(value)}")


def _checked_text(text: str) -> str:
    if "\0" in text:
        raise _Refusal(ValueError, "Unsupported value: text with a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Refusal(ValueError, "Unsupported value: text with a lone surrogate") from None
    return text


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."


class PrimedSigner(Signer):
    """Django's Signer that derives its keys once, not anew for every signature. It signs the same."""

    def __init__(self, *, salt: str) -> None:
        super().__init__(salt=salt)
        self._own_salt = salt
        self._primed = self._prime(self.key)
        self._fallbacks = [self._prime(key) for key in self.fallback_keys]

    def _prime(self, key: str | bytes) -> "_Mac":
        material = (self._own_salt + "signer").encode() + (key if isinstance(key, bytes) else key.encode())
        return _Mac(self.algorithm, hashlib.new(self.algorithm, material).digest())

    def signature(self, value: str | bytes, key: str | bytes | None = None) -> str:
        if key is not None and key != self.key:
            return super().signature(value, key)
        return self._primed.sign(value if isinstance(value, bytes) else value.encode())

    def is_genuine(self, signature: str, value: str) -> bool:
        """Whether the signing key, or one that is still accepted, made ``signature``."""
        if not signature.isascii():
            return False
        message = value.encode()
        return compare_digest(signature, self._primed.sign(message)) or any(
            compare_digest(signature, primed.sign(message)) for primed in self._fallbacks
        )


class _Mac:
    """HMAC (RFC 2104) with the key's two halves hashed beforehand: twice as quick as ``hmac`` for short messages."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, algorithm: str, key: bytes) -> None:
        self._inner = hashlib.new(algorithm)
        block = key.ljust(self._inner.block_size, b"\0")
        self._inner.update(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.new(algorithm, bytes(byte ^ 0x5C for byte in block))

    def sign(self, message: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False).translate(_URL_SAFE, b"=").decode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Seal:
    """Signs and verifies what a cluster stores. Django's signing, one salt per cluster and purpose."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._runs = PrimedSigner(salt=f"django_manta.run.{cluster}")
        self._results = PrimedSigner(salt=f"django_manta.result.{cluster}")

    def sign_run(self, run_id: str, task: str, arguments: str, overrides: str, references: str | None = None) -> str:
        return self._runs.signature(_run_message(run_id, task, arguments, overrides, references))

    def run_is_genuine(
        self, signature: str, run_id: str, task: str, arguments: str, overrides: str, references: str | None = None
    ) -> bool:
        return self._runs.is_genuine(signature, _run_message(run_id, task, arguments, overrides, references))

    def sign_result(self, run_id: str, result: str) -> str:
        return self._results.signature(_result_message(run_id, result))

    def result_is_genuine(self, signature: str, run_id: str, result: str) -> bool:
        return self._results.is_genuine(signature, _result_message(run_id, result))

    def sign_delegate(self, run_id: str, delegate: str) -> str:
        """Unlike a result's, so that neither can be taken for the other."""
        return self._results.signature(_delegate_message(run_id, delegate))

    def delegate_is_genuine(self, signature: str, run_id: str, delegate: str) -> bool:
        return self._results.is_genuine(signature, _delegate_message(run_id, delegate))

    @property
    def fingerprint(self) -> str:
        """Names the signing key without revealing it."""
        return self._fingerprint(self._runs.key)

    @property
    def accepted_fingerprints(self) -> list[str]:
        """Of the signing key and of every key whose signatures are still accepted."""
        return [self._fingerprint(key) for key in [self._runs.key, *self._runs.fallback_keys]]

    def _fingerprint(self, key: str | bytes) -> str:
        salt = f"django_manta.fingerprint.{self.cluster}"
        return salted_hmac(salt, "fingerprint", secret=key, algorithm="sha256").hexdigest()[:16]


def _run_message(run_id: str, task: str, arguments: str, overrides: str, references: str | None) -> str:
    # The lengths keep two fields from trading characters: no content can imitate a boundary.
    if references is not None:
        version = f"{SIGNATURE_VERSION}r:{len(references)}:{references}"
        return f"{version}:{run_id}:{len(task)}:{task}:{len(overrides)}:{overrides}:{arguments}"
    return f"{SIGNATURE_VERSION}:{run_id}:{len(task)}:{task}:{len(overrides)}:{overrides}:{arguments}"


def _result_message(run_id: str, result: str) -> str:
    return f"{SIGNATURE_VERSION}:{run_id}:{result}"


def _delegate_message(run_id: str, delegate: str) -> str:
    return f"{SIGNATURE_VERSION}d:{run_id}:{delegate}"
