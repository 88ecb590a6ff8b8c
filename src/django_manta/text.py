"""
Text that can always be stored, and text that can always be shown.

What user code raises or prints may hold NUL characters and lone surrogates, which no database
takes, and may be of any length. It is cleaned and capped here, keeping head and tail: the first
lines say where it began, the last what went wrong.
"""

import re

#: Characters that steer a terminal or end a line: all control characters, and Unicode's own separators of lines.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: The same without newline and tab.
_CONTROL_INSIDE_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

#: Those that JSON does not escape by itself.
_CONTROL_IN_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029]")

#: The longest error message, traceback or output tail kept with an attempt, in characters.
MESSAGE_LIMIT = 10_000
TRACEBACK_LIMIT = 60_000


def is_storable(text: str) -> bool:
    """Whether every database takes ``text`` as it is."""
    if "\0" in text:
        return False
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def clean(text: str) -> str:
    """``text`` without what databases refuse: NUL and surrogates become U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        # By way of UTF-16, where a pair of surrogates is one character and a lone one is one fault.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def visible(text: str) -> str:
    """Control characters made visible, all but newline and tab: what a row holds must not steer a terminal."""
    return _CONTROL_INSIDE_LINES.sub(_escaped, text)


def on_one_line(text: str) -> str:
    """The same, newline and tab included: what a row holds must not look like a line of its own."""
    return _CONTROL.sub(_escaped, text)


def visible_json(text: str) -> str:
    """The same JSON, with the control characters escaped that JSON allows as they are."""
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cap(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``: head and tail, with a note of what was left out."""
    if len(text) <= limit:
        return text
    note = f"\n… {len(text) - limit:,} characters left out …\n"
    room = max(limit - len(note), 0)
    head = room // 2
    return text[:head] + note + text[len(text) - (room - head) :]


def storable(text: str, limit: int) -> str:
    """Cap first: cleaning a message of many megabytes would cost more than it is worth."""
    return clean(cap(text, limit))
