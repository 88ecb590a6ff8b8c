"""What goes into a row comes out the same, or is refused at the door with its place."""

import enum
import math
from collections import UserDict
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_manta import payload
from django_manta.payload import Seal

KEY, OLD_KEY = "k" * 30 + "0123456789-abcdefghij-new", "k" * 30 + "0123456789-abcdefghij-old"

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@given(json_values)
def test_json_text_round_trips_exactly(value: Any) -> None:
    decoded = payload.decode(payload.encode(value))
    assert decoded == value
    assert repr(decoded) == repr(value)


def test_large_floats_stay_floats_and_keys_keep_their_order() -> None:
    text = payload.encode({"z": 1e16, "a": -0.0, "m": 10**30})
    assert text == '{"z":1e+16,"a":-0.0,"m":1000000000000000000000000000000}'
    assert isinstance(payload.decode(text)["z"], float)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (b"bytes", "bytes"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (range(3), [0, 1, 2]),
        (UserDict(a=1), {"a": 1}),
        (True, True),
    ],
)
def test_what_django_accepts_is_kept_in_its_plain_form(value: Any, kept: Any) -> None:
    assert payload.normalize(value) == kept
    assert type(payload.normalize(value)) is type(kept)


def circle() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ([1, [object()]], TypeError, "Unsupported type: <class 'object'> (at args[1][0])"),
        ([{"a": {"b": math.nan}}], ValueError, "nan has no place in JSON (at args[0]['a']['b'])"),
        ([[math.inf]], ValueError, "inf has no place in JSON (at args[0][0])"),
        ([{1: "x"}], TypeError, "key 1 is <class 'int'>, and JSON keys are strings (at args[0][1])"),
        ([{"a": "b\0c"}], ValueError, "text with a NUL character (at args[0]['a'])"),
        ([{"k\0": 1}], ValueError, "text with a NUL character (at args[0]['k\\x00'])"),
        (["\ud800"], ValueError, "text with a lone surrogate (at args[0])"),
        ([b"\xff"], ValueError, "that is not UTF-8 (at args[0])"),
        ([{1, 2}], TypeError, "Unsupported type: <class 'set'> (at args[0])"),
        ([circle()], ValueError, "or inside itself (at args[0][0]"),
    ],
)
def test_refusals_name_the_place(args: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        payload.encode_arguments(args, {})
    assert words in str(caught.value)


def test_an_integer_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="Exceeds the limit"):
        payload.encode([10**5000])


@pytest.mark.parametrize(("args", "kwargs"), [("text", {}), ({"a": 1}, {}), (3, {}), ([], [1])])
def test_arguments_must_be_a_sequence_and_a_mapping(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError, match="must be a"):
        payload.encode_arguments(args, kwargs)


SIGNED = ("0190", "app.tasks.send", "[[1],{}]", '{"timeout":5}')


@pytest.mark.parametrize("place", range(4))
def test_a_signature_covers_every_part(place: int) -> None:
    seal = Seal("c")
    signature = seal.sign_run(*SIGNED)
    assert seal.run_is_genuine(signature, *SIGNED)
    altered = [*SIGNED]
    altered[place] += "x"
    assert not seal.run_is_genuine(signature, *altered)


def test_characters_cannot_move_from_one_part_to_the_next() -> None:
    seal = Seal("c")
    signature = seal.sign_run("1", "ab", "c", "d")
    assert not seal.run_is_genuine(signature, "1", "a", "c", "bd")
    assert not seal.run_is_genuine(signature, "1", "ab", "", "dc")


def test_another_cluster_or_purpose_accepts_nothing() -> None:
    signature = Seal("one").sign_run(*SIGNED)
    assert not Seal("two").run_is_genuine(signature, *SIGNED)
    assert not Seal("one").result_is_genuine(Seal("two").sign_result("1", "2"), "1", "2")
    assert Seal("one").result_is_genuine(Seal("one").sign_result("1", "2"), "1", "2")


def test_a_rotated_key_still_verifies_what_the_former_signed() -> None:
    with override_settings(SECRET_KEY=OLD_KEY, SECRET_KEY_FALLBACKS=[]):
        signature, old_fingerprint = Seal("c").sign_run(*SIGNED), Seal("c").fingerprint
    with override_settings(SECRET_KEY=KEY, SECRET_KEY_FALLBACKS=[OLD_KEY]):
        assert Seal("c").run_is_genuine(signature, *SIGNED)
        assert Seal("c").fingerprint != old_fingerprint
        assert old_fingerprint in Seal("c").accepted_fingerprints
    with override_settings(SECRET_KEY=KEY, SECRET_KEY_FALLBACKS=[]):
        assert not Seal("c").run_is_genuine(signature, *SIGNED)
        assert old_fingerprint not in Seal("c").accepted_fingerprints


def test_the_limit_of_arguments_counts_bytes_as_they_are_stored() -> None:
    frame = len('[["",""],{}]')
    fits = "x" * (payload.ARGUMENTS_LIMIT // 2 - frame)
    assert len(payload.encode_arguments([fits, "\u00e9" * (payload.ARGUMENTS_LIMIT // 4)], {}).text) > len(fits)
    # Half as many characters as the limit has bytes, and a little more.
    too_large = "\u00e9" * (payload.ARGUMENTS_LIMIT // 2)
    with pytest.raises(ValueError, match=r"16\.0 MiB of JSON \(16,777,225 bytes\).*at most 16 MiB.*elsewhere"):
        payload.encode_arguments([too_large], {})


def test_a_result_is_weighed_in_bytes() -> None:
    emoji = payload.encode("\U0001f600" * (payload.RESULT_LIMIT // 4))
    with pytest.raises(ValueError, match=r"The task returned 64\.0 MiB of JSON \(67,108,866 bytes\)"):
        payload.refuse_large(emoji, payload.RESULT_LIMIT, "The task returned")
    payload.refuse_large("x" * payload.RESULT_LIMIT, payload.RESULT_LIMIT, "The task returned")
