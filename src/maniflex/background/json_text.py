"""JSON as durable work stores it: what cannot be stored and read back the same is refused.

>>> encode({"order_id": 7}, "payload")
'{"order_id":7}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from pydantic_core import PydanticSerializationError, to_json

from maniflex._json import has_half_character
from maniflex.errors import ValidationFailed
from maniflex.model.base import TO_READ_BACK

decode = msgspec.json.decode
_SUSPECT = re.compile(rb"NaN|Infinity|\\u0000")
# An even number of backslashes before it only quote each other.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: Any, what: str) -> str:
    """The value as JSON text; `ValidationFailed` naming `what` when there is no such text."""
    try:
        text = to_json(value, inf_nan_mode="constants", fallback=_list_of, context=TO_READ_BACK)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise not_stored(what, f"cannot be stored as JSON: {_short(error)}") from None
    return check_text(text, what) if _SUSPECT.search(text) else text.decode()


def readable_text(value: Any, what: str) -> tuple[str, Any]:
    """The value as JSON text, and as it will be read; `ValidationFailed` where either cannot be."""
    try:
        text = encode(value, what)
        return text, decode(text)
    except (ValidationFailed, KeyboardInterrupt):
        raise
    except BaseException as error:  # the type's own functions may raise anything
        raise not_stored(what, f"cannot be stored as JSON: {_short(error)}") from error


def check_text(text: bytes, what: str) -> str:
    """JSON as every database takes it; `ValidationFailed` naming `what` where one would not."""
    try:
        if _SUSPECT.search(text):
            json.loads(text, parse_constant=_not_json)
            if _NUL.search(text):
                raise ValueError("it contains the NUL character")
        return text.decode()
    except (ValueError, RecursionError) as error:
        raise not_stored(what, f"cannot be stored as JSON: {_short(error)}") from None


def not_stored(what: str, message: str) -> ValidationFailed:
    """Why a value is not in the database."""
    return ValidationFailed(f"the {what} {message}", [{"field": what, "message": message}])


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a stored value that is not JSON."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unstored:
    """Stands for a value that was there and that no text could be stored for."""


class HalfCharacter(ValueError):
    """A stored text holds half of a character, which PostgreSQL takes for JSON and no decoder reads."""

    def __init__(self) -> None:
        super().__init__("a text in it is not valid Unicode: half of a character (a surrogate) stands alone")


def unreadable_because(stored: str | bytes, error: Exception) -> Exception:
    """Why a stored text cannot be read, where that raised `error`: half a character looks like the end."""
    body = stored.encode(errors="surrogatepass") if isinstance(stored, str) else stored
    try:
        decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as cause:
        return HalfCharacter() if has_half_character(str(cause), body) else error
    return error


def decode_stored(stored: str | bytes | None) -> Any:
    """The value of a stored text; `Unreadable` when it is not JSON, because another program wrote it."""
    if stored is None:
        return None
    try:
        return decode(stored)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Unreadable(_short(unreadable_because(stored, error)))


def _list_of(value: Any) -> list[Any]:
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"there is no JSON for a {type(value).__name__}")


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _short(error: BaseException) -> str:
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return clean(line.removeprefix("Error serializing to JSON: PydanticSerializationError: "), 300)


def clean(text: str, most: int = 2000) -> str:
    """Text that every database takes, cut where it would go on for pages."""
    text = text.replace("\x00", "\\0").encode(errors="backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def is_text(value: Any) -> bool:
    """Whether it is a text that every database takes as it is."""
    if not isinstance(value, str):
        return False
    return "\0" not in value if value.isascii() else clean(value, len(value)) == value


def instant(text: str | datetime) -> datetime:
    """A stored time, whichever database it comes from."""
    return datetime.fromisoformat(text) if isinstance(text, str) else text
