"""How values look in each database, and back.

Postgres takes Python's own types; SQLite stores text for everything it has no type for. Instants
are fixed-width UTC text there, so that comparing the text compares the time; decimals are text, so
that no digit is lost, and compared by their order keys (`decimal_order`). JSON is text
on both, so a client gets back what it sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, get_origin
from uuid import UUID

from maniflex._json import encode_json, json_guard
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.statement import Dialect, by_dialect

Codec = Callable[[Any], Any]


def encode_datetime(value: datetime) -> str:
    moment = value if value.tzinfo is UTC else value.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def encode_time(value: time) -> str:
    return value.isoformat(timespec="microseconds")


def encode_decimal(value: Decimal) -> str:
    return format(value, "f")


def written_out(value: Decimal) -> Decimal:
    """The same number without an exponent, which asyncpg gives to large round ones."""
    return Decimal(format(value, "f")) if value.as_tuple().exponent > 0 else value  # type: ignore[operator]  # finite


def encode_any(value: Any) -> Any:
    """A value for SQLite by its own type, where no field says what it is."""
    match value:
        case datetime():
            return encode_datetime(value if value.tzinfo else value.replace(tzinfo=UTC))
        case date():
            return value.isoformat()
        case time():
            return encode_time(value)
        case Decimal():
            return encode_decimal(value)
        case UUID():
            return str(value)
        case dict() | list():
            return encode_json(value)
        case _:
            return value


# What turns a value into a parameter; None where the driver takes it as it is.
_ENCODERS: dict[Dialect, dict[Kind, Codec | None]] = {
    Dialect.SQLITE: {
        Kind.TEXT: None,
        Kind.INT: None,
        Kind.FLOAT: None,
        Kind.BOOL: None,
        Kind.DECIMAL: encode_decimal,
        Kind.DATETIME: encode_datetime,
        Kind.DATE: date.isoformat,
        Kind.TIME: encode_time,
        Kind.UUID: str,
        Kind.BYTES: None,
        Kind.JSON: encode_json,
    },
    Dialect.POSTGRES: {
        Kind.TEXT: None,
        Kind.INT: None,
        Kind.FLOAT: None,
        Kind.BOOL: None,
        Kind.DECIMAL: None,
        Kind.DATETIME: None,
        Kind.DATE: None,
        Kind.TIME: None,
        Kind.UUID: None,
        Kind.BYTES: None,
        Kind.JSON: encode_json,
    },
}
# What turns a stored value back; None where the driver already gives it.
_DECODERS: dict[Dialect, dict[Kind, Codec | None]] = {
    Dialect.SQLITE: {
        Kind.TEXT: None,
        Kind.INT: None,
        Kind.FLOAT: float,  # what RETURNING gives of a whole number is an int
        Kind.BOOL: bool,
        Kind.DECIMAL: Decimal,
        Kind.DATETIME: datetime.fromisoformat,
        Kind.DATE: date.fromisoformat,
        Kind.TIME: time.fromisoformat,
        Kind.UUID: UUID,
        Kind.BYTES: None,
        Kind.JSON: None,  # by `FieldMeta.load_json`, where the record is made
    },
    Dialect.POSTGRES: {
        Kind.TEXT: None,
        Kind.INT: None,
        Kind.FLOAT: None,
        Kind.BOOL: None,
        Kind.DECIMAL: written_out,
        Kind.DATETIME: None,
        Kind.DATE: None,
        Kind.TIME: None,
        Kind.UUID: None,
        Kind.BYTES: None,
        Kind.JSON: None,
    },
}


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _plain_decimal(value: Decimal) -> Decimal:
    return Decimal(format(value or abs(value), "f"))  # PostgreSQL has no negative zero


# What PostgreSQL gives back of a value that was written; None where it is the value itself.
_RETURNED: dict[Kind, Codec | None] = {
    Kind.TEXT: None,
    Kind.INT: None,
    Kind.FLOAT: None,
    Kind.BOOL: None,
    Kind.DECIMAL: _plain_decimal,
    Kind.DATETIME: _in_utc,
    Kind.DATE: None,
    Kind.TIME: None,
    Kind.UUID: None,
    Kind.BYTES: None,
    Kind.JSON: encode_json,
}


# The type a value has to have for PostgreSQL to give back one that is known beforehand; None: never.
_CERTAIN: dict[Kind, type | None] = {
    Kind.TEXT: str,
    Kind.INT: int,
    Kind.FLOAT: float,
    Kind.BOOL: bool,
    Kind.DECIMAL: Decimal,
    Kind.DATETIME: datetime,
    Kind.DATE: date,
    Kind.TIME: None,  # a time zone is dropped
    Kind.UUID: UUID,
    Kind.BYTES: bytes,
    Kind.JSON: object,  # stored as its text
}


class RowForecast:
    """What PostgreSQL will give back of rows of one model that are about to be written."""

    def __init__(self, fields: Sequence[FieldMeta]) -> None:
        self._converts = [(f.name, _RETURNED[f.kind]) for f in fields]
        self._types = [(f.name, _CERTAIN[f.kind]) for f in fields if _CERTAIN[f.kind] is not object]

    def is_certain(self, values: Mapping[str, Any]) -> bool:
        """Whether no value can come back as another one, unless a trigger makes it so."""
        for name, certain_type in self._types:
            value = values.get(name)
            if value is not None and type(value) is not certain_type:
                return False
        return True

    def row(self, values: Mapping[str, Any]) -> list[Any]:
        """The row of these values."""
        return [
            value if (value := values[name]) is None or convert is None else convert(value)
            for name, convert in self._converts
        ]

    def changed_row(self, row: Sequence[Any], changes: Mapping[str, Any]) -> list[Any]:
        """The row with some of its values replaced."""
        after = list(row)
        for place, (name, convert) in enumerate(self._converts):
            if name in changes:
                value = changes[name]
                after[place] = value if value is None or convert is None else convert(value)
        return after


def encoder(kind: Kind, dialect: Dialect) -> Codec | None:
    """What turns a value of this kind into a parameter; None when it goes as it is."""
    return _ENCODERS[dialect][kind]


def decoder(kind: Kind, dialect: Dialect) -> Codec | None:
    """What turns a stored value of this kind back; None when the driver already gives it."""
    return _DECODERS[dialect][kind]


def row_decoder(
    fields: Sequence[FieldMeta],
    dialect: Dialect,
    *,
    guards_json: bool = False,
    openers: Sequence[tuple[int, Callable[[str, str], str | None]]] = (),
    sealed: Sequence[tuple[int, Callable[[Any, Sequence[Any]], Any]]] = (),
) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """What turns a stored row into values; None when the driver already gives them."""
    by_kind = _DECODERS[dialect]
    decoders = [(i, convert) for i, f in enumerate(fields) if (convert := by_kind[f.kind]) is not None]
    if guards_json:
        for i, f in enumerate(fields):
            if f.load_json is not None:
                decoders.append((i, json_guard(f.load_json, is_object=get_origin(f.type) is dict)))

    def decode(row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for i, convert in decoders:
            value = values[i]
            if value is not None:
                values[i] = convert(value)
        return values

    if sealed:
        return _decode_behind(sealed, decode)
    if not openers:
        return decode if decoders else None
    id_place = next(i for i, f in enumerate(fields) if f.name == "id")

    def decode_and_open(row: Sequence[Any]) -> Sequence[Any]:
        values = decode(row)
        record_id = values[id_place]
        for i, open_value in openers:
            stored = values[i]
            if stored is not None:
                values[i] = open_value(stored, record_id)
        return values

    return decode_and_open


def rows_decoder(
    fields: Sequence[FieldMeta],
    decode: Callable[[Sequence[Any]], Sequence[Any]] | None,
    page_openers: Sequence[tuple[int, Callable[[Sequence[Any], int, int], None]]] = (),
) -> Callable[[Sequence[Sequence[Any]]], Sequence[Sequence[Any]]] | None:
    """What turns the stored rows of a page into values; None when the driver already gives them.

    `decode` is what one row needs besides. Encrypted values are opened column by column, so that a page that
    was read before costs no call for each of its rows.
    """
    if not page_openers:
        return None if decode is None else lambda rows: [decode(row) for row in rows]
    convert: Callable[[Sequence[Any]], Sequence[Any]] = list if decode is None else decode
    id_place = next(i for i, f in enumerate(fields) if f.name == "id")

    def decode_and_open(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        decoded_rows = list(map(convert, rows))
        for place, open_all in page_openers:
            open_all(decoded_rows, place, id_place)
        return decoded_rows

    return decode_and_open


def _decode_behind(
    sealed: Sequence[tuple[int, Callable[[Any, Sequence[Any]], Any]]],
    decode: Callable[[Sequence[Any]], list[Any]],
) -> Callable[[Sequence[Any]], list[Any]]:
    """Open what durable work has stored sealed, and decode the row after that."""

    def open_and_decode(row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for i, open_stored in sealed:
            if values[i] is not None:
                values[i] = open_stored(values[i], row)
        return decode(values)

    return open_and_decode


# Values as SQL text: for DDL, and for conditions an index must recognise.


def literal(value: Any, kind: Kind, dialect: Dialect) -> str:
    """A declared value as SQL; it was checked against the field's type when the model was read."""
    if value is None:
        return "NULL"
    convert = encoder(kind, dialect)
    stored_value = convert(value) if convert else value
    match stored_value.value if isinstance(stored_value, Enum) else stored_value:
        case bool() as flag:
            return by_dialect(dialect, sqlite=str(int(flag)), postgres=str(flag).upper())
        case Decimal() as number:
            return format(number, "f")
        case int() | float() as number:
            return repr(number)
        case bytes() as content:
            digits = content.hex()
            return by_dialect(dialect, sqlite=f"x'{digits}'", postgres=f"'\\x{digits}'")
        case other:
            text = other.isoformat() if isinstance(other, date | time) else str(other)
            return "'" + text.replace("'", "''") + "'"
