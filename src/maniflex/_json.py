"""JSON in and out: the one home of what is JSON here, and of what is refused.

`loads` reads what a client sends, `read_text` what a person typed or a file holds: input that is ambiguous,
lossy or meant to hurt is refused, never guessed. Refused are malformed text, text that is not UTF-8, a key
given twice, NaN and infinities, numbers too large for a float, lone surrogates, NUL in text, nesting deeper
than `MAX_DEPTH`, and of a body more values than allowed. `read_back` reads what we wrote and a client
returns. `encode` and `decode` are for what is stored, and `json_trouble` judges values that code has made.

A body is parsed once, by C code that holds the interpreter until it is done. How long that takes is a
matter of how many values there are rather than of bytes, which is why they are counted first.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, NoReturn

import msgspec
from pydantic_core import PydanticSerializationError, to_json

from maniflex.config import DEFAULT_LIMITS
from maniflex.errors import BodyTooLarge, InvalidJson, ValidationFailed

MAX_DEPTH = 100  # levels below the value's own
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_fast = msgspec.json.Decoder(strict=True).decode
_fast_exact = msgspec.json.Decoder(float_hook=Decimal).decode
# Between two calls of a function in Python other threads have their turn.
_exact_by_turns = msgspec.json.Decoder(float_hook=lambda text: Decimal(text)).decode


class JsonFault(StrEnum):
    """Why a text is not taken for JSON, as the end of a sentence about it."""

    SYNTAX = "is not valid JSON"
    NUMBER = "holds a number that is out of range"
    HALF = "contains half of a character"
    DEEP = f"is nested deeper than {MAX_DEPTH} levels"
    NUL = "contains the NUL character"
    REPEATED = "gives a key twice"


class NotJson(ValueError):
    """A text that is not JSON, or JSON that no request can carry."""

    def __init__(self, fault: JsonFault, detail: str = "") -> None:
        super().__init__(fault.value)
        self.fault = fault
        self.detail = detail  # what the parser says, the number or the key
        self.line, self.column = 1, 1  # of a mistake in the syntax


_OF_BODIES = {
    JsonFault.SYNTAX: "the body is not valid JSON: {}",
    JsonFault.NUMBER: "a number in the body is out of range",
    JsonFault.HALF: "a text in the body is not valid Unicode: half of a surrogate pair stands alone",
    JsonFault.DEEP: "the body is nested too deeply",
    JsonFault.NUL: "text may not contain the NUL character",
    JsonFault.REPEATED: "the key {} is given twice",
}


def loads(body: bytes, exact: bool = False, most: int = DEFAULT_LIMITS.body_values) -> Any:
    """The value of a JSON body; with `exact`, fractions come as `Decimal` with all their digits.

    `BodyTooLarge` when it holds more than `most` values.
    """
    if len(body) > 2 * most:  # a value takes a byte, and another keeps it from the next
        _refuse_many_values(body, most)
    try:
        return _parse(body, exact)
    except NotJson as problem:
        raise InvalidJson(_OF_BODIES[problem.fault].format(problem.detail)) from None


def read_text(text: str, *, exact: bool = False) -> Any:
    r"""The value of a JSON text that a person typed or a file holds; `NotJson` says what is wrong, and where.

    >>> read_text('{"a": [1]}')
    {'a': [1]}
    >>> read_text('["\\ud800"]')
    Traceback (most recent call last):
    maniflex._json.NotJson: contains half of a character
    """
    try:
        return _parse(text.encode(), exact)
    except UnicodeEncodeError:
        raise NotJson(JsonFault.HALF) from None
    except NotJson as problem:
        _find_place(text, problem)
        raise


def read_back(text: str | bytes) -> Any:
    """The value of a text that was written here and that a client returns; `ValueError` if it is another."""
    try:
        return decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _parse(body: bytes, exact: bool) -> Any:
    try:
        if len(body) < _MANY_BYTES:
            value = (_fast_exact if exact else _fast)(body)
        else:
            with _without_collector():
                value = (_exact_by_turns if exact else _fast)(body)
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise _not_json(str(error), body) from None
    except ArithmeticError:  # an exponent that no Decimal has
        raise NotJson(JsonFault.NUMBER) from None
    except RecursionError:
        raise NotJson(JsonFault.DEEP) from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise NotJson(JsonFault.DEEP)
    if b"\\u0000" in body and _has_nul(value):
        raise NotJson(JsonFault.NUL)
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


def refuse_long_integers(body: bytes, value: Any) -> None:
    """Refuse whole numbers beyond 64 bits anywhere in the value; `body` tells whether to look."""
    # In a large body the search itself would hold the interpreter for long.
    if len(body) < _MANY_BYTES and not _LONG_NUMBER.search(body):
        return
    items = [value]
    for item in items:  # it grows while it is walked
        if type(item) is int:
            if not INT_MIN <= item <= INT_MAX:
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


def _not_json(message: str, body: bytes) -> NotJson:
    if has_half_character(message, body):
        return NotJson(JsonFault.HALF)
    if "range" in message:
        return NotJson(JsonFault.NUMBER)
    return NotJson(JsonFault.SYNTAX, message.removeprefix("JSON is malformed: "))


def _find_place(text: str, problem: NotJson) -> None:
    """Look again, and slowly, for where a text is wrong, or for its number that is none."""

    def refuse_constant(name: str) -> NoReturn:
        raise NotJson(JsonFault.NUMBER, name)

    def read_float(digits: str) -> float:
        return float(digits) if math.isfinite(float(digits)) else refuse_constant(digits)

    if problem.fault in (JsonFault.SYNTAX, JsonFault.NUMBER):
        try:
            json.loads(text, parse_float=read_float, parse_constant=refuse_constant)
        except json.JSONDecodeError as error:
            problem.detail, problem.line, problem.column = error.msg, error.lineno, error.colno
        except NotJson as number:
            problem.fault, problem.detail = number.fault, number.detail
            problem.args = number.args
        except (ValueError, RecursionError):
            pass


def has_half_character(message: str, body: bytes) -> bool:
    """Whether it was refused for that; close to the end of the text, msgspec takes it for truncated."""
    if "truncated" not in message or b"\\u" not in body:
        return "surrogate" in message
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True  # the body is complete, and nothing else would look truncated


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
                raise NotJson(JsonFault.REPEATED, repr(key.decode()))
            objects[-1].add(key)


# -- values that code has made: what a JSON parser has already done for a body


def text_trouble(text: str) -> str | None:
    """Why a database or a JSON client could not hold the text; None when they can."""
    if "\x00" in text:
        return "must not contain the NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "must not contain lone surrogates"
    return None


def json_trouble(value: Any, depth: int = 0) -> str | None:
    """Why the value could not be stored as JSON; None when it can."""
    if depth > MAX_DEPTH:
        return f"must not be nested deeper than {MAX_DEPTH} levels"
    match value:
        case None | bool():
            return None
        case str():
            return text_trouble(value)
        case int():
            return None if INT_MIN <= value <= INT_MAX else "must hold no integer beyond 64 bits"
        case float():
            return None if math.isfinite(value) else "must hold no NaN or infinity"
        case dict():
            if not all(isinstance(key, str) for key in value):
                return "must have text keys only"
            parts = [*value.keys(), *value.values()]
        case list():
            parts = value
        case _:
            return f"must hold JSON values only, not {type(value).__name__}"
    return next((trouble for part in parts if (trouble := json_trouble(part, depth + 1))), None)


# -- what is stored: what cannot be stored and read back the same is refused

# The contexts by which records know, wherever pydantic writes them, that what is written will be read back
# (`model.base`): with their names in JSON, or with those by which a typed payload is read.
TO_READ_BACK = {"maniflex": "to_read_back"}
TO_SEAL = {"maniflex": "to_seal"}  # as well, and to be stored sealed
BY_ATTRIBUTE = {"maniflex": "by_attribute"}

decode = msgspec.json.decode
_SUSPECT = re.compile(rb"NaN|Infinity|\\u0000")
# An even number of backslashes before it only quote each other.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: Any, what: str, *, to_seal: bool = False) -> str:
    """The value as JSON text; `ValidationFailed` naming `what` when there is no such text.

    A text that will be sealed may hold records with encrypted fields.

    >>> encode({"order_id": 7}, "payload")
    '{"order_id":7}'
    """
    try:
        context = TO_SEAL if to_seal else TO_READ_BACK
        text = to_json(value, inf_nan_mode="constants", fallback=_list_of, context=context)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise not_stored(what, f"cannot be stored as JSON: {_short(error)}") from None
    return check_text(text, what) if _SUSPECT.search(text) else text.decode()


def readable_text(value: Any, what: str, *, to_seal: bool = False) -> tuple[str, Any]:
    """The value as JSON text, and as it will be read; `ValidationFailed` where either cannot be."""
    try:
        text = encode(value, what, to_seal=to_seal)
        return text, decode(text)
    except (ValidationFailed, KeyboardInterrupt):
        raise
    except BaseException as error:  # the type's own functions may raise anything
        raise not_stored(what, f"cannot be stored as JSON: {_short(error)}") from error


def check_text(text: bytes, what: str) -> str:
    """JSON as every database takes it; `ValidationFailed` naming `what` where one would not."""
    try:
        if _SUSPECT.search(text):
            json.loads(text, parse_constant=_refuse_constant)
            if _NUL.search(text):
                raise ValueError("it contains the NUL character")
        return text.decode()
    except (ValueError, RecursionError) as error:
        raise not_stored(what, f"cannot be stored as JSON: {_short(error)}") from None


def not_stored(what: str, message: str) -> ValidationFailed:
    """Why a value is not in the database."""
    return ValidationFailed(f"the {what} {message}", [{"field": what, "message": message}])


def encode_json(value: Any) -> str:
    """The value of a JSON column as text."""
    return to_json(value, inf_nan_mode="constants").decode()


def encode_plain(value: Any) -> str:
    """Lists, rows and tables that were made here, of texts and numbers, as JSON text."""
    return msgspec.json.encode(value).decode()


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


def _refuse_constant(name: str) -> NoReturn:
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


# JSON columns that may hold anything: a value that cannot be read is shown as that.
#
# SQLite takes any bytes for a text, PostgreSQL takes JSON that Python cannot read (a lone surrogate, a
# list in a list in a list …), and an older version may have written another shape. A model that says
# `__shows_unreadable__` gives such a value as `{"$unreadable": "the stored value as text"}`, so that one
# record breaks neither itself nor the list it is in.


UNREADABLE_KEY = "$unreadable"
LONGEST_SHOWN = 10_000  # characters that are shown


def json_guard(
    load: Callable[[str | bytes], Any], *, is_object: bool = False
) -> Callable[[str | bytes], str]:
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
            return msgspec.json.encode({UNREADABLE_KEY: _preview(raw)}).decode()
        return text

    return load_guarded


def _preview(raw: str | bytes) -> str:
    text = raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
    text = text.replace("\0", "\\0")  # which no database would take, should somebody store it again
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def is_unreadable(value: Any) -> bool:
    """Whether a value that was read stands for one that could not be."""
    return (
        isinstance(value, dict)
        and value.keys() == {UNREADABLE_KEY}
        and isinstance(value[UNREADABLE_KEY], str)
    )
