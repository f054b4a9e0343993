"""JSON columns that may hold anything: a value that cannot be read is shown as that.

SQLite takes any bytes for a text, PostgreSQL takes JSON that Python cannot read (a lone surrogate, a list
in a list in a list …), and an older version may have written another shape. A model that says
`__shows_unreadable__` gives such a value as `{"$unreadable": "the stored value as text"}`, so that one
record breaks neither itself nor the list it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

KEY = "$unreadable"
LONGEST = 10_000  # characters that are shown

Load = Callable[[str | bytes], Any]


def json_guard(load: Load, *, is_object: bool = False) -> Callable[[str | bytes], str]:
    """What gives the stored text if it is JSON that `load` can read, and the text of its stand-in if not."""

    def load_guarded(raw: str | bytes) -> str:
        try:
            text = raw if isinstance(raw, str) else raw.decode()
            value = load(text)
            if is_object and not isinstance(value, dict):
                raise TypeError("it is no object")
            if "NaN" in text or "Infinity" in text:  # which pydantic reads, and no client
                msgspec.json.decode(text)
        except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            return msgspec.json.encode({KEY: _preview(raw)}).decode()
        return text

    return load_guarded


def _preview(raw: str | bytes) -> str:
    text = raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
    text = text.replace("\0", "\\0")  # which no database would take, should somebody store it again
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def is_unreadable(value: Any) -> bool:
    """Whether a value that was read stands for one that could not be."""
    return isinstance(value, dict) and value.keys() == {KEY} and isinstance(value[KEY], str)
