"""The text of a cell → the value that a client of the API would send, by the kind of its field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from maniflex._json import NotJson, read_text
from maniflex._names import did_you_mean
from maniflex.errors import ManiflexError
from maniflex.features.export import harmless
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.texts import TEXT, TextOf, companion_field, locale_rules, text_field

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
        return read_text(text)
    except NotJson as problem:
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


# Which column of a file becomes which field of a model.


ERROR_COLUMN = "_error"  # of a file with refused lines; an import leaves it out


class WrongMapping(ManiflexError):
    """A mapping that names a column or a field that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """The fields by column, and the field that finds a record to update."""

    fields: Mapping[str, FieldMeta]
    key: FieldMeta | None = None

    @property
    def key_column(self) -> str:
        return next((column for column, field in self.fields.items() if field is self.key), "")


def importable_fields(meta: ModelMeta) -> list[FieldMeta]:
    """The fields that a file may fill; of a text in several languages also its translations."""
    marker = meta.soft_delete
    skipped_names = {"id", "created_at", "updated_at", *([marker.field] if marker else [])}
    fields = [
        field
        for field in meta.fields
        if field.name not in skipped_names
        and not field.readonly
        and not field.hidden
        and "file" not in field.extra
    ]
    return [*fields, *(part for field in fields for part in _translations_of(field))]


def _translations_of(field: FieldMeta) -> Iterator[FieldMeta]:
    """What the columns of a file for translators are: `name.de`, and in jsonl `name_i18n`."""
    rules = locale_rules(field)
    if rules is not None:
        yield companion_field(field)
        yield from (text_field(field, code, exact=True) for code in rules.locales)


def value_in_record(field: FieldMeta, record: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether a record as an answer shows it tells the value of a field, and which it is."""
    text: TextOf | None = field.extra.get(TEXT)
    if text is None:
        return field.api in record, record.get(field.api)
    rules = locale_rules(text.field)
    texts = record.get(rules.companion if rules is not None else "")
    return isinstance(texts, Mapping), texts.get(text.codes[0]) if isinstance(texts, Mapping) else None


def key_fields(meta: ModelMeta) -> list[FieldMeta]:
    """The fields that can say which record a line updates."""
    own_keys = [f for f in importable_fields(meta) if f.unique and not f.secret]
    return [*own_keys, *([meta.by_name["id"]] if "id" in meta.by_name else [])]


def suggest_fields(
    columns: Sequence[str], fields: Sequence[FieldMeta], known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The API name for each column: as it was mapped before, or by its name; empty for none."""
    by_name = {plain_name(name): field.api for field in fields for name in (field.name, field.api)}
    api_names = {field.api for field in fields}
    names_by_column: dict[str, str] = {}
    for column in columns:
        name = (known or {}).get(column)
        if name is None or (name and name not in api_names):
            name = "" if column.startswith(ERROR_COLUMN) else by_name.get(plain_name(column), "")
        names_by_column[column] = "" if name in names_by_column.values() else name
    return names_by_column


def plain_name(text: str) -> str:
    """A name without its capitals, blanks and signs."""
    return re.sub(r"[^a-z0-9]+", "_", text.casefold()).strip("_")


def make_map(
    names: Mapping[str, str], fields: Sequence[FieldMeta], keys: Sequence[FieldMeta], upsert: str
) -> ColumnMap:
    """The map from columns to fields; `WrongMapping` names the mistake of one that cannot be used."""
    by_api = {field.api: field for field in (*fields, *keys)}
    fields_by_column: dict[str, FieldMeta] = {}
    for column, name in names.items():
        if not name:
            continue
        if name not in by_api:
            raise WrongMapping(f"there is no field {name!r} to import{did_you_mean(name, by_api)}")
        if by_api[name] in fields_by_column.values():
            raise WrongMapping(f"two columns are mapped to {name!r}")
        fields_by_column[column] = by_api[name]
    if not fields_by_column:
        raise WrongMapping("no column is mapped to a field")
    key = next((field for field in keys if field.api == upsert), None)
    if upsert and key is None:
        raise WrongMapping(
            f"{upsert!r} is no unique field{did_you_mean(upsert, [field.api for field in keys])}"
        )
    if key is not None and key not in fields_by_column.values():
        raise WrongMapping(f"no column is mapped to {key.api!r}, which finds the record to update")
    if key is None:
        fields_by_column = {column: field for column, field in fields_by_column.items() if field.name != "id"}
    return ColumnMap(fields=fields_by_column, key=key)
