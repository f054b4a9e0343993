"""JSON in, strictly: input that is ambiguous, lossy or meant to hurt is refused, never guessed.

Refused: malformed text, text that is not UTF-8, a key given twice, NaN and infinities, numbers too
large for a float, lone surrogates, NUL in text, nesting deeper than `MAX_DEPTH`, more values than allowed.

A body is parsed once, by C code that holds the interpreter until it is done. How long that takes is a
matter of how many values there are rather than of bytes, which is why they are counted first.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import msgspec

from maniflex.config import DEFAULT_LIMITS
from maniflex.errors import BodyTooLarge, InvalidJson

MAX_DEPTH = 100  # levels below the body's own

_fast = msgspec.json.Decoder(strict=True).decode
_fast_exact = msgspec.json.Decoder(float_hook=Decimal).decode
# Between two calls of a function in Python other threads have their turn.
_exact_by_turns = msgspec.json.Decoder(float_hook=lambda text: Decimal(text)).decode


def loads(body: bytes, exact: bool = False, most: int = DEFAULT_LIMITS.body_values) -> Any:
    """The value of a JSON text; with `exact`, fractions come as `Decimal` with all their digits.

    `BodyTooLarge` when it holds more than `most` values.
    """
    if len(body) > 2 * most:  # a value takes a byte, and another keeps it from the next
        _refuse_many_values(body, most)
    try:
        if len(body) < _MANY_BYTES:
            value = (_fast_exact if exact else _fast)(body)
        else:
            with _without_collector():
                value = (_exact_by_turns if exact else _fast)(body)
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise InvalidJson(_HALF if has_half_character(str(error), body) else _plain(str(error))) from None
    except ArithmeticError:  # an exponent that no Decimal has
        raise InvalidJson("a number in the body is out of range") from None
    except RecursionError:
        raise InvalidJson("the body is nested too deeply") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise InvalidJson("the body is nested too deeply")
    if b"\\u0000" in body and _has_nul(value):
        raise InvalidJson("text may not contain the NUL character")
    # Every key brings a colon, and a key that came twice is there once. So there are as many colons as
    # keys and colons in texts, or a key came twice; or a text has a colon that is written as an escape.
    colons = body.count(b":")
    if colons != (len(value) if type(value) is dict else 0) and (
        colons != _keys_and_colons(value) or _ESCAPED_COLON.search(body)
    ):
        _refuse_repeated_keys(body)
    return value


@contextmanager
def _without_collector() -> Iterator[None]:
    """Make many lists and objects at once; the collector would walk them over and over for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_MANY_BYTES = 64 * 1024
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|,|[\[{](?!\s*+[\]}])', re.DOTALL)


def _refuse_many_values(body: bytes, most: int) -> None:
    """Refuse a body of more than `most` values before any of them is made."""
    # A comma or an opening bracket stands before all values but the first; texts may have them too.
    if body.count(b",") + body.count(b"[") + body.count(b"{") < most:
        return
    values = 1
    for token in _TOKEN.finditer(body):
        values += body[token.start()] != _QUOTE
        if values > most:
            raise BodyTooLarge(f"the body has more than {most} values; send it in parts")


_QUOTE = ord('"')


def _keys_and_colons(value: Any) -> int:
    """How many keys there are in the value, and colons in its texts."""
    count = 0
    items = [value]
    for item in items:  # it grows while it is walked
        kind = type(item)
        if kind is str:
            count += item.count(":")
        elif kind is dict:
            count += len(item) + "".join(item).count(":")
            items += item.values()
        elif kind is list:
            items += item
    return count


_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_INT64 = 2**63


def refuse_long_integers(body: bytes, value: Any) -> None:
    """Refuse whole numbers beyond 64 bits anywhere in the value; `body` tells whether to look."""
    # In a large body the search itself would hold the interpreter for long.
    if len(body) < _MANY_BYTES and not _LONG_NUMBER.search(body):
        return
    items = [value]
    for item in items:  # it grows while it is walked
        if type(item) is int:
            if not -_INT64 <= item < _INT64:
                raise InvalidJson("a whole number in the body is beyond 64 bits")
        else:
            items += _parts(item)


def as_floats(value: Any) -> Any:
    """The JSON value with its fractions as floats again, for columns that hold JSON itself.

    Lists and objects are changed in place: they were made for this request.
    """
    if type(value) is Decimal:
        return _as_float(value)
    items = [value]
    for item in items:  # it grows while it is walked
        if type(item) is dict:
            for key, part in item.items():
                if type(part) is Decimal:
                    item[key] = _as_float(part)
                elif type(part) is dict or type(part) is list:
                    items.append(part)
        elif type(item) is list:
            for place, part in enumerate(item):
                if type(part) is Decimal:
                    item[place] = _as_float(part)
                elif type(part) is dict or type(part) is list:
                    items.append(part)
    return value


def _as_float(value: Decimal) -> float:
    number = float(value)
    if number in (float("inf"), float("-inf")):
        raise InvalidJson("a number in the body is out of range")
    return number


_HALF = "a text in the body is not valid Unicode: half of a surrogate pair stands alone"


def has_half_character(message: str, body: bytes) -> bool:
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


_KEY_OR_OBJECT = re.compile(rb'("(?:[^"\\]++|\\.)*+")(\s*+:)?|[{}]', re.DOTALL)


def _refuse_repeated_keys(body: bytes) -> None:
    """Walk the keys of a body that is well-formed; in Python, so that other threads have their turns."""
    objects: list[set[bytes]] = []
    for token in _KEY_OR_OBJECT.finditer(body):
        text, is_key = token.groups()
        if text is None:
            if token[0] == b"{":
                objects.append(set())
            else:
                objects.pop()
        elif is_key:
            # Only a key with an escape may be the same as one that is written otherwise.
            key = json.loads(text).encode() if b"\\" in text else text[1:-1]
            if key in objects[-1]:
                raise InvalidJson(f"the key {key.decode()!r} is given twice")
            objects[-1].add(key)
