"""
Text that can always be stored.

What user code raises or prints may hold NUL characters and lone surrogates, which no database
takes, and may be of any length. It is cleaned and capped here, keeping head and tail: the first
lines say where it began, the last what went wrong.
"""

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
