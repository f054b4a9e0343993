"""Which Python values a column takes: the value rules, as pydantic-core schemas.

The only home of the rules. Bodies arrive as parsed JSON, so nothing is coerced that JSON can say
itself: text stays text, `"5"` is no number and `true` is no 1. What JSON has no word for (instants,
decimals, UUIDs, bytes) is read from text. Instants become UTC; a naive one is taken as UTC.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any, LiteralString, NoReturn, TypeVar, cast
from uuid import UUID

from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, PydanticCustomError, SchemaError, SchemaValidator, core_schema

from maniflex._json import INT_MAX, INT_MIN
from maniflex._locales import MOST_LOCALES, locale_code
from maniflex.model.annotations import Shape
from maniflex.model.core_schema import change_leaf, change_value, inline_schema, strictly
from maniflex.model.declared import Kind
from maniflex.model.field import FieldSpec, LocaleEdit, LocaleString

T = TypeVar("T")

MAX_DECIMAL_DIGITS = 1000

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?\Z")
_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,](?P<fraction>\d+))?)?([Zz]|[+-]\d\d(:?\d\d)?)?\Z", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z", re.ASCII)
_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.(?P<fraction>\d+))?)?\Z", re.ASCII)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Rules:
    """The value rules of one field; pydantic asks it for the schema."""

    __slots__ = ("needs_text", "shape", "spec")

    def __init__(self, shape: Shape, spec: FieldSpec) -> None:
        self.shape = shape
        self.spec = spec
        self.needs_text = False  # of a required field with translations; known once the class is read

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if self.shape.trouble:
            return core_schema.any_schema()  # reported when the application starts
        if self.shape.type is LocaleString:
            schema = self._texts_schema()
            return core_schema.nullable_schema(schema) if self.shape.nullable else schema
        if self.shape.is_structured:
            return cast(CoreSchema, strictly(inline_schema(source) or handler(source)))
        if self.shape.kind is Kind.JSON:
            return cast(CoreSchema, strictly(handler(source)))
        if self.shape.is_text_like:
            return change_value(handler(source), self._text_like)
        return change_leaf(handler(source), self._leaf)

    def _leaf(self, leaf: CoreSchema) -> CoreSchema:
        schema = cast(CoreSchema, {**leaf, **self._constraints(leaf["type"])})
        if self.shape.enum is not None:
            return _before(_whole_number, schema) if self.shape.kind is Kind.INT else schema
        if self.spec.options.get("ignore_case") is True and leaf["type"] == "str":
            return _before(_lower_text, schema)
        reader = _READERS[self.shape.kind]
        return _before(reader, schema) if reader else schema

    def _text_like(self, schema: CoreSchema) -> CoreSchema:
        """Text that a type of pydantic reads, as the text of what it made of it."""
        steps = [
            _before(partial(_text_or, self.shape.type), schema),
            core_schema.no_info_plain_validator_function(str),
            self._leaf(core_schema.str_schema()),
        ]
        return core_schema.chain_schema(steps)

    def _texts_schema(self) -> CoreSchema:
        """A map from locales to texts, each of which has the lengths and the pattern of the field."""
        text: CoreSchema = core_schema.str_schema(strict=True)
        constraints = {**_lengths(self.spec.options), **usable_pattern(self.spec.options.get("pattern"))}
        if constraints:
            text = cast(CoreSchema, {**text, **constraints})
            text = core_schema.no_info_wrap_validator_function(_is_empty_or, text)
        texts = core_schema.dict_schema(core_schema.str_schema(strict=True), text)
        return core_schema.no_info_wrap_validator_function(self._read_texts, texts)

    def _read_texts(self, value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> LocaleString:
        if not isinstance(value, dict):
            _refuse("type", "must be a map from locales to texts")
        texts: dict[str, str] = {}
        for code, text in validate(value).items():
            locale = locale_code(code)
            if locale is None:
                _refuse("locale", "must have locales such as de or pt-BR as keys")
            if locale in texts:
                _refuse("locale", "must have one text for each locale")
            texts[locale] = text
        if len(texts) > MOST_LOCALES:
            _refuse("locale", f"must have at most {MOST_LOCALES} translations")
        if isinstance(value, LocaleEdit):
            return value.with_texts(texts)
        if self.needs_text and not any(texts.values()):
            _refuse("required", "needs a text in one language at least")
        return LocaleString(texts)

    def _constraints(self, leaf: str) -> dict[str, Any]:
        options = self.spec.options
        match leaf:
            case "str":
                lengths = _lengths(options)
                return {"strict": True, **lengths, **usable_pattern(options.get("pattern"))}
            case "int":
                return {"strict": True, **_int_bounds(options)}
            case "float":
                return {"strict": True, "allow_inf_nan": False, **_bounds(options, float)}
            case "decimal":
                return {"allow_inf_nan": False, **_bounds(options, exact)}
            case "bytes":
                return {"strict": True, **_lengths(options)}
            case "bool" | "datetime" | "date" | "time":
                return {"strict": True}
            case _:
                return {}


def _lower_text(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _text_or(own: type, value: Any) -> Any:
    """Text, or what code has made of it already; pydantic would read numbers as addresses, too."""
    if not isinstance(value, str | own):
        raise PydanticCustomError("type", "must be text")
    return value


def number(value: Any) -> int | float | Decimal | None:
    """The value, if it can bound a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    return value if math.isfinite(value) else None


def exact(value: int | float | Decimal) -> Decimal:
    """A bound as a Decimal, a float by what it prints as: 0.1 means one tenth."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def usable_pattern(pattern: Any) -> dict[str, Any]:
    """The schema part for a pattern; the linear-time engine unless the pattern needs Python's."""
    if not isinstance(pattern, str):
        return {}
    try:
        re.compile(pattern)
    except re.error:
        return {}
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return {"pattern": pattern, "regex_engine": "python-re"}
    return {"pattern": pattern}


def _lengths(options: Mapping[str, Any]) -> dict[str, int]:
    names = ("min_length", "max_length")
    return {name: options[name] for name in names if type(options.get(name)) is int and options[name] >= 0}


def _int_bounds(options: Mapping[str, Any]) -> dict[str, int]:
    low, high = number(options.get("min")), number(options.get("max"))
    return {
        "ge": INT_MIN if low is None else max(INT_MIN, math.ceil(low)),
        "le": INT_MAX if high is None else min(INT_MAX, math.floor(high)),
    }


def _bounds(options: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    low, high = number(options.get("min")), number(options.get("max"))
    return {
        **({} if low is None else {"ge": convert(low)}),
        **({} if high is None else {"le": convert(high)}),
    }


def _before(reader: Callable[[Any], Any], schema: CoreSchema) -> CoreSchema:
    return core_schema.no_info_before_validator_function(reader, schema)


def _is_empty_or(value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
    """An empty text is a missing translation, of which nothing is asked."""
    return value if value == "" and isinstance(value, str) else validate(value)


def _refuse(code: LiteralString, message: LiteralString) -> NoReturn:
    raise PydanticCustomError(code, message)


def _whole_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse("type", "must be an integer")
    return value


def _float(value: Any) -> Any:
    if type(value) is Decimal:
        value = float(value)
    return 0.0 if type(value) is float and value == 0 else value  # minus zero is zero


def _decimal(value: Any) -> Decimal:
    if isinstance(value, str) and len(value) <= 2 * MAX_DECIMAL_DIGITS and _NUMBER.match(value):
        try:
            return _check_digits(Decimal(value))
        except DecimalException:
            _refuse("digits", f"must have at most {MAX_DECIMAL_DIGITS} digits")
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 4 * MAX_DECIMAL_DIGITS:
            _refuse("digits", f"must have at most {MAX_DECIMAL_DIGITS} digits")
        return _check_digits(Decimal(value))
    if isinstance(value, Decimal):
        if not value.is_finite():
            _refuse("finite", "must be a finite number")
        return _check_digits(value)
    _refuse("type", "must be a decimal number, sent as text or as a whole number")


def written_digits(value: Decimal) -> int:
    """How many digits a finite number has when it is written without an exponent."""
    before = max(value.adjusted() + 1, 1)
    after = max(-value.as_tuple().exponent, 0)  # type: ignore[operator] # finite, so an int
    return before + after


def _check_digits(value: Decimal) -> Decimal:
    if written_digits(value) > MAX_DECIMAL_DIGITS:
        _refuse("digits", f"must have at most {MAX_DECIMAL_DIGITS} digits")
    return value or value.copy_abs()  # minus zero is zero


def _datetime(value: Any) -> datetime:
    if isinstance(value, str):
        value = _read(_INSTANT, value, datetime.fromisoformat, "a date and time like 2024-05-31T09:30:00Z")
    elif not isinstance(value, datetime):
        _refuse("type", "must be a date and time like 2024-05-31T09:30:00Z")
    if value.tzinfo is not UTC:
        try:
            value = value.replace(tzinfo=UTC) if value.utcoffset() is None else value.astimezone(UTC)
        except OverflowError:
            _refuse("range", "must lie between the years 1 and 9999 in UTC")
    # PostgreSQL's driver takes the very first and the very last instant for infinity.
    if not _FIRST < value < _LAST:
        _refuse("range", "must lie between the years 1 and 9999 in UTC")
    return value  # type: ignore[no-any-return]


def _date(value: Any) -> date:
    if isinstance(value, str):
        return _read(_DATE, value, date.fromisoformat, "a date like 2024-05-31")
    if not isinstance(value, date) or isinstance(value, datetime):
        _refuse("type", "must be a date like 2024-05-31")
    return value


def _time(value: Any) -> time:
    if isinstance(value, str):
        return _read(_TIME, value, time.fromisoformat, "a time like 09:30:00")
    if not isinstance(value, time) or value.tzinfo is not None:
        _refuse("type", "must be a time without zone, like 09:30:00")
    return value


def _read(shape: re.Pattern[str], text: str, parse: Callable[[str], T], example: str) -> T:
    match = shape.match(text)
    if match is None:
        _refuse("format", f"must be {example}")
    if "fraction" in shape.groupindex and (match["fraction"] or "")[6:].strip("0"):
        _refuse("precision", "must not be finer than microseconds")
    try:
        return parse(text.upper())
    except ValueError:
        _refuse("format", f"must be {example}")


def _uuid(value: Any) -> Any:
    if not isinstance(value, (UUID, str)):
        _refuse("type", "must be a UUID")
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if not isinstance(value, str):
        _refuse("type", "must be base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        _refuse("format", "must be base64 text")


# What reads a value that JSON has no word for; None where JSON says it itself.
_READERS: dict[Kind, Callable[[Any], Any] | None] = {
    Kind.TEXT: None,
    Kind.INT: None,
    Kind.BOOL: None,
    Kind.FLOAT: _float,
    Kind.DECIMAL: _decimal,
    Kind.DATETIME: _datetime,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.UUID: _uuid,
    Kind.BYTES: _bytes,
    Kind.JSON: None,
}


def json_reader(shape: Shape) -> Callable[[str | bytes], Any]:
    """What turns stored JSON text into the declared type."""
    if shape.is_structured:
        return TypeAdapter(shape.type).validate_json
    return _plain_json


_plain_json: Callable[[str | bytes], Any] = TypeAdapter(Any).validate_json
