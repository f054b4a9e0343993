"""The text of a cell → the value that a client of the API would send, by the kind of its field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from maniflex.features.tabular import harmless
from maniflex.model.meta import FieldMeta, Kind
from maniflex.transfer.json_text import UnusableJson, read_json

_YES = frozenset(("true", "yes", "1", "on"))
_NO = frozenset(("false", "no", "0", "off"))
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_FORMULA = re.compile(r"[=＝]|[+\-@＋－＠][A-Za-z_][A-Za-z0-9_. ]*[(|!]")


class CellProblem(ValueError):
    """A cell that holds no value of its field; the text is for the person who sent the file."""


def read_cell(field: FieldMeta, value: Any, zone: ZoneInfo, *, is_csv: bool) -> Any:
    """The value that the cell of a csv or xlsx file stands for; a text that is none is left to the API."""
    if isinstance(value, str):
        text = _without_mark(value) if is_csv else value
        if field.enum is not None:
            return next((one for one in map(_plain, field.enum) if str(one) == text.strip()), text.strip())
        return READERS[field.kind](text)
    if isinstance(value, datetime):
        return _moment_value(field, value, zone)
    if isinstance(value, date | time):
        return value.isoformat()
    if field.kind in (Kind.TEXT, Kind.DECIMAL, Kind.UUID) or field.enum is not None:
        return _number_text(value)
    if field.kind is Kind.INT and isinstance(value, float) and value.is_integer():
        return int(value)
    if field.kind is Kind.BOOL and value in (0, 1):
        return bool(value)
    return value


def harmless_cell(text: str) -> str:
    """A cell of a file as it is given back: numbers as they are, formulas with an apostrophe in front."""
    return text if _NUMBER.fullmatch(text) else harmless(text)


def read_native(field: FieldMeta, value: Any) -> Any:
    """A value of a jsonl file as the API takes it: fractions keep all their digits."""
    if isinstance(value, Decimal):
        return str(value) if field.kind is Kind.DECIMAL else _finite(value)
    if isinstance(value, list):
        return [read_native(field, one) for one in value]
    if isinstance(value, dict):
        return {name: read_native(field, one) for name, one in value.items()}
    return value


def is_same(field: FieldMeta, stored: Any, value: Any) -> bool:
    """Whether a record has this value already, however the two are written."""
    if stored == value and type(stored) is type(value):
        return True
    if stored is None or value is None or stored == "" or value == "":
        return stored in (None, "") and value in (None, "")
    try:
        return bool(_COMPARED[field.kind](stored) == _COMPARED[field.kind](value))
    except (ValueError, TypeError, ArithmeticError):
        return False


def _without_mark(text: str) -> str:
    """The text without the apostrophe that exports put in front of what looks like a formula."""
    if text.startswith("'") and harmless(text[1:]) != text[1:]:
        return text[1:]
    if _FORMULA.match(text.lstrip()):
        raise CellProblem("begins like a formula; put an apostrophe in front to keep it as text")
    return text


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _read_int(text: str) -> Any:
    plain = text.strip()
    return int(plain) if _INTEGER.fullmatch(plain) else plain


def _read_float(text: str) -> Any:
    plain = text.strip()
    value = float(plain) if _NUMBER.fullmatch(plain) else math.nan
    return value if math.isfinite(value) else plain


def _read_bool(text: str) -> Any:
    plain = text.strip().lower()
    if plain in _YES | _NO:
        return plain in _YES
    raise CellProblem("is neither true nor false")


def _read_json(text: str) -> Any:
    try:
        return read_json(text)
    except UnusableJson as problem:
        raise CellProblem(str(problem)) from None


def _finite(value: Decimal) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise CellProblem("is a number that is too large")
    return number


def _number_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value) if isinstance(value, int | float | Decimal) else value


def _moment_value(field: FieldMeta, value: datetime, zone: ZoneInfo) -> str:
    """A date of a spreadsheet, which knows no zones: it is meant in that of the panel."""
    if field.kind is Kind.DATE and value.time() == time():
        return value.date().isoformat()
    if field.kind is Kind.DATETIME and value.tzinfo is None:
        return value.replace(tzinfo=zone).astimezone(UTC).isoformat()
    return value.isoformat()


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(str(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise ValueError(value) from None


def _number(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError(value)
    return _decimal(value)


READERS: dict[Kind, Callable[[str], Any]] = {
    Kind.TEXT: str,
    Kind.INT: _read_int,
    Kind.FLOAT: _read_float,
    Kind.BOOL: _read_bool,
    Kind.DECIMAL: str.strip,
    Kind.DATETIME: str.strip,
    Kind.DATE: str.strip,
    Kind.TIME: str.strip,
    Kind.UUID: str.strip,
    Kind.BYTES: str.strip,
    Kind.JSON: _read_json,
}
_COMPARED: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: str,
    Kind.INT: _number,
    Kind.FLOAT: _number,
    Kind.BOOL: bool,
    Kind.DECIMAL: _decimal,
    Kind.DATETIME: _moment,
    Kind.DATE: lambda value: date.fromisoformat(str(value)),
    Kind.TIME: lambda value: time.fromisoformat(str(value)),
    Kind.UUID: lambda value: UUID(str(value)),
    Kind.BYTES: str,
    Kind.JSON: lambda value: json.dumps(value, sort_keys=True),
}
