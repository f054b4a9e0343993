"""The values that a column takes, as pydantic-core schemas, and messages about other values.

The only home of the rules. Bodies arrive as parsed JSON, so nothing is coerced that JSON can say
itself: text stays text, `"5"` is no number and `true` is no 1. What JSON has no word for (instants,
decimals, UUIDs, bytes) is read from text. Instants become UTC; a naive one is taken as UTC.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any, LiteralString, NoReturn, TypeVar, cast, get_args
from uuid import UUID

from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    PydanticCustomError,
    SchemaError,
    SchemaValidator,
    ValidationError,
    core_schema,
)
from pydantic_core.core_schema import ErrorType

from maniflex._json import INT_MAX, INT_MIN
from maniflex._locales import MOST_LOCALES, locale_code
from maniflex._names import did_you_mean
from maniflex.errors import ValidationFailed
from maniflex.model.annotations import Shape
from maniflex.model.core_schema import change_leaf, change_value, inline_schema, strictly
from maniflex.model.declared import Kind
from maniflex.model.field import FieldSpec, LocaleEdit, LocaleString

# What a client is told about a value that breaks its rules: one detail per offence, in plain words.
#
# The only place that reads pydantic's errors. A detail is `{"field", "message", "code"}`: the API name
# (dotted into JSON columns), a sentence, a short stable code. The offending value is never repeated.


Detail = dict[str, str]

_SENTENCES: dict[str, tuple[str, str]] = {
    "string_type": ("type", "must be text"),
    "string_unicode": ("text", "must not contain lone surrogates"),
    "string_too_short": ("min_length", "must have at least {min_length} characters"),
    "string_too_long": ("max_length", "must have at most {max_length} characters"),
    "string_pattern_mismatch": ("pattern", "must match the pattern {pattern}"),
    "int_type": ("type", "must be an integer"),
    "int_parsing_size": ("range", "must fit in 64 bits"),
    "float_type": ("type", "must be a number"),
    "finite_number": ("finite", "must be a finite number"),
    "bool_type": ("type", "must be true or false"),
    "greater_than_equal": ("min", "must be at least {ge}"),
    "less_than_equal": ("max", "must be at most {le}"),
    "greater_than": ("min", "must be greater than {gt}"),
    "less_than": ("max", "must be less than {lt}"),
    "multiple_of": ("multiple_of", "must be a multiple of {multiple_of}"),
    "decimal_max_digits": ("digits", "must have at most {max_digits} digits"),
    "decimal_max_places": ("digits", "must have at most {decimal_places} decimals"),
    "decimal_whole_digits": ("digits", "must have at most {whole_digits} digits before the point"),
    "literal_error": ("enum", "must be one of: {expected}"),
    "enum": ("enum", "must be one of: {expected}"),
    "uuid_parsing": ("format", "must be a UUID"),
    "uuid_type": ("type", "must be a UUID"),
    "bytes_type": ("type", "must be base64 text"),
    "bytes_too_short": ("min_length", "must have at least {min_length} bytes"),
    "bytes_too_long": ("max_length", "must have at most {max_length} bytes"),
    "dict_type": ("type", "must be an object"),
    "mapping_type": ("type", "must be an object"),
    "model_type": ("type", "must be an object"),
    "model_attributes_type": ("type", "must be an object"),
    "dataclass_type": ("type", "must be an object"),
    "list_type": ("type", "must be a list"),
    "too_short": ("min_length", "must have at least {min_length} items"),
    "too_long": ("max_length", "must have at most {max_length} items"),
    "extra_forbidden": ("unknown", "is not a known field"),
    "unexpected_keyword_argument": ("unknown", "is not a known field"),
    "recursion_loop": ("depth", "must not contain itself"),
}
# Inside pydantic models, whose own rules may coerce, each kind has several ways to fail.
_FAMILIES = {
    "int": "must be an integer",
    "float": "must be a number",
    "decimal": "must be a decimal number",
    "bool": "must be true or false",
    "datetime": "must be a date and time like 2024-05-31T09:30:00Z",
    "date": "must be a date like 2024-05-31",
    "time": "must be a time like 09:30:00",
    "uuid": "must be a UUID",
}
_BUILT_IN = frozenset(get_args(ErrorType))


def details(error: ValidationError | Iterable[ErrorDetails], model: type[BaseModel]) -> list[Detail]:
    """Every offence of a failed validation, in the order of the fields."""
    errors = error.errors(include_url=False) if isinstance(error, ValidationError) else error
    return [_detail(item, model) for item in errors]


def part_detail(item: ErrorDetails) -> Detail:
    """One offence against a type that is no model, such as the body of an action, in the same words."""
    path = ".".join(map(str, item["loc"]))
    if item["type"] == "missing":
        return detail(path, "required", "is required")
    if item["input"] is None and item["type"].endswith("_type"):
        return detail(path, "not_null", "must not be null")
    sentence = _sentence(item, None)
    if sentence is None:
        return {"field": path, "message": _own_words(item), "code": _custom_code(item)}
    return detail(path, *sentence)


def detail(field: str, code: str, text: str) -> Detail:
    what = f'field "{field}"' if field else "the value"
    return {"field": field, "message": f"{what} {text}", "code": code}


def unknown_field(name: str, known_names: Iterable[str]) -> Detail:
    return detail(name, "unknown", f"does not exist{did_you_mean(name, known_names)}")


def api_name(name: str, model: type[BaseModel]) -> str:
    rules = _rules(name, model)
    return name if rules is None else str(rules.spec.options.get("alias", name))


def by_attribute(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Values by attribute name, where some came by alias: type checkers expect `alias=` in `__init__`."""
    fields = model.__pydantic_fields__
    aliases = {api_name(name, model): name for name in fields}
    by_name = {name if name in fields else aliases.get(name, name): value for name, value in values.items()}
    unknown = [name for name in by_name if name not in fields]
    if unknown:
        raise refusal([unknown_field(name, fields) for name in unknown], model)
    return by_name


def refusal(problems: list[Detail], model: type[BaseModel]) -> ValidationFailed:
    """The error for these offences against a model that is not registered anywhere yet."""
    secret = [name for name in model.__pydantic_fields__ if _is_secret(_rules(name, model))]
    names = frozenset(api_name(name, model) for name in secret)
    return ValidationFailed(details=problems, model=model.__name__, secrets=names)


def _is_secret(rules: Rules | None) -> bool:
    options = {} if rules is None else rules.spec.options
    return bool(options.get("hidden") or options.get("writeonly") or options.get("encrypted"))


def _rules(name: Any, model: type[BaseModel]) -> Rules | None:
    info = model.__pydantic_fields__.get(name)
    return next((item for item in info.metadata if isinstance(item, Rules)), None) if info else None


def _detail(item: ErrorDetails, model: type[BaseModel]) -> Detail:
    location = item["loc"]
    if not location:
        return {"field": "", "message": _own_words(item), "code": _custom_code(item)}
    rules = _rules(location[0], model)
    path = ".".join([api_name(str(location[0]), model), *map(str, location[1:])])
    if item["type"] == "missing":
        return detail(path, "required", "is required")
    if item["input"] is None and _forbids_null(item, rules):
        return detail(path, "not_null", "must not be null")
    sentence = _sentence(item, rules.shape if rules and len(location) == 1 else None)
    if sentence is None:
        return {"field": path, "message": _own_words(item), "code": _custom_code(item)}
    return detail(path, *sentence)


def _forbids_null(item: ErrorDetails, rules: Rules | None) -> bool:
    if len(item["loc"]) == 1:
        return rules is not None and not rules.shape.nullable
    return item["type"].endswith("_type")


def _sentence(item: ErrorDetails, shape: Shape | None) -> tuple[str, str] | None:
    """Code and wording of a built-in rule; None for what the application's own validators say."""
    context: Mapping[str, Any] = item.get("ctx", {})
    if item["type"] in ("value_error", "assertion_error"):
        return None
    if item["type"].startswith("ip_"):
        return "format", "must be an IP address"
    if item["type"] not in _BUILT_IN:
        return (item["type"], item["msg"]) if item["msg"].startswith("must ") else None
    if item["type"] in ("literal_error", "enum") and shape is not None and shape.enum is not None:
        return "enum", "must be one of: " + ", ".join(map(str, shape.enum))
    if context.get("le") == INT_MAX or context.get("ge") == INT_MIN:
        return "range", "must fit in 64 bits"
    sentence = _SENTENCES.get(item["type"])
    if sentence is None and (family := item["type"].split("_")[0]) in _FAMILIES:
        return "type", _FAMILIES[family]
    if sentence is None and item["type"].startswith("url_"):
        return "format", f"must be a URL: {item['msg'].replace('Input should be a valid URL, ', '')}"
    if sentence is None:
        return "invalid", item["msg"].replace("Input should be", "must be").replace("Input should", "must")
    code, wording = sentence
    return code, wording.format_map({name: _plain(value) for name, value in context.items()})


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _own_words(item: ErrorDetails) -> str:
    error = item.get("ctx", {}).get("error")
    return str(error) if error is not None and str(error) else item["msg"]


def _custom_code(item: ErrorDetails) -> str:
    return "invalid" if item["type"] in ("value_error", "assertion_error") else item["type"]


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
