"""JSON in, strictly: what is ambiguous, lossy or meant to hurt is refused, never guessed.

Refused: malformed text, text that is not UTF-8, a key given twice, NaN and infinities, numbers too
large for a float, lone surrogates, NUL in text, nesting deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from maniflex.errors import InvalidJson

MAX_DEPTH = 100  # levels below the body's own

_fast = msgspec.json.Decoder(strict=True).decode
_fast_exact = msgspec.json.Decoder(float_hook=Decimal).decode


def loads(body: bytes, *, exact: bool = False) -> Any:
    """The value of a JSON text; with `exact`, fractions come as `Decimal` with all their digits."""
    try:
        value = _fast_exact(body) if exact else _fast(body)
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise InvalidJson(_HALF if _has_half(str(error), body) else _plain(str(error))) from None
    except RecursionError:
        raise InvalidJson("the body is nested too deeply") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise InvalidJson("the body is nested too deeply")
    if b"\\u0000" in body and _has_nul(value):
        raise InvalidJson("text may not contain the NUL character")
    # Every key brings a colon. As many colons as keys means no key came twice and nothing is nested;
    # anything else (a colon in a text, an inner object) takes the careful way.
    if body.count(b":") != (len(value) if type(value) is dict else 0):
        _refuse_repeated_keys(body)
    return value


_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_INT64 = 2**63


def refuse_long_integers(body: bytes, value: Any) -> None:
    """Refuse whole numbers beyond 64 bits anywhere in the value; `body` tells whether to look."""
    if not _LONG_NUMBER.search(body):
        return
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, int) and not -_INT64 <= item < _INT64:
            raise InvalidJson("a whole number in the body is beyond 64 bits")
        stack.extend(_parts(item))


def as_floats(value: Any) -> Any:
    """The same JSON value with fractions as floats again, for columns that hold JSON itself."""
    match value:
        case Decimal():
            number = float(value)
            if number in (float("inf"), float("-inf")):
                raise InvalidJson("a number in the body is out of range")
            return number
        case dict():
            return {key: as_floats(item) for key, item in value.items()}
        case list():
            return [as_floats(item) for item in value]
        case _:
            return value


_HALF = "a text in the body is not valid Unicode: half of a surrogate pair stands alone"


def _has_half(message: str, body: bytes) -> bool:
    """Whether it was refused for that; close to the end of the body, msgspec takes it for truncated."""
    if "truncated" not in message or b"\\u" not in body:
        return "surrogate" in message
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True  # the body is complete, and nothing else would look truncated


def _plain(message: str) -> str:
    if "range" in message:
        return "a number in the body is out of range"
    return "the body is not valid JSON: " + message.removeprefix("JSON is malformed: ")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 2):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return False
    return True


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _has_nul(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if "\x00" in item:
                return True
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidJson(f"the key {repeated!r} is given twice")


def _constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is not valid JSON")


_careful = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant, parse_int=str, parse_float=str)


def _refuse_repeated_keys(body: bytes) -> None:
    try:
        _careful.decode(body.decode())
    except RecursionError:
        raise InvalidJson("the body is nested too deeply") from None
    except ValueError as error:
        raise InvalidJson("the body is not valid JSON") from error
