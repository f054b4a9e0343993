"""The rows of one model on their way from one database to another.

Values are read as the source keeps them, turned into Python's types and written as the target keeps them;
JSON goes as the text it is. The target makes derived values itself, such as the words of a search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from maniflex._tables import PartialTable
from maniflex.db.columns import COLUMN_TYPES
from maniflex.db.port import Executor, Row
from maniflex.errors import ManiflexError
from maniflex.model.meta import Kind
from maniflex.sql.codec import decoder, encoder
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import quote

MOST_PARAMETERS = 30_000  # SQLite takes 32,766
_MODULUS = 1 << 128


class UncopiedValue(ManiflexError):
    """A stored value is none of its field, so that no other database can take it."""


class CopiedTable:
    """One table in one of the two databases: its rows as values, and values as its rows."""

    def __init__(self, model: ModelSql) -> None:
        self.model = model
        self.name = str(model.table.name)
        self.fields = model.meta.fields
        self._dialect = model.dialect
        self._id_place = next(n for n, field in enumerate(self.fields) if field.name == "id")
        self._decoders = [decoder(field.kind, model.dialect) for field in self.fields]
        self._encoders = [
            None if field.kind is Kind.JSON else encoder(field.kind, model.dialect) for field in self.fields
        ]
        self._columns = [quote(field.column, model.dialect) for field in self.fields]
        self._table = quote(self.name, model.dialect)
        self._id = quote(model.id.name, model.dialect)

    # -- reading

    async def read(self, run: Executor, after: Any, limit: int) -> list[list[Any]]:
        """The values of the next rows behind the id `after`, by id."""
        encode_id = self._encoders[self._id_place]
        key = after if encode_id is None or after is None else encode_id(after)
        condition = "" if after is None else f" WHERE {self._id} > {self._mark(1)}"
        text = f"{self.whole().text}{condition} ORDER BY {self._id} LIMIT {limit}"
        return [self._values(row) for row in await run.fetch(Sql(text, () if after is None else (key,)))]

    def whole(self) -> Sql:
        """All rows, in any order."""
        return Sql(f"SELECT {', '.join(self._columns)} FROM {self._table}")

    def _values(self, row: Row) -> list[Any]:
        values = list(row)
        for place, convert in enumerate(self._decoders):
            value = values[place]
            if value is None:
                continue
            try:
                values[place] = _CHECKS[self.fields[place].kind](value if convert is None else convert(value))
            except (ValueError, TypeError, ArithmeticError) as error:
                where = f"{self.name} {row[self._id_place]}: {self.fields[place].column}"
                raise UncopiedValue(
                    f"{where}: {value!r} is stored, which is no value of this field"
                ) from error
        return values

    async def count(self, run: Executor) -> int:
        row = await run.fetch_one(Sql(f"SELECT count(*) FROM {self._table}"))
        return 0 if row is None else int(row[0])

    async def has_rows(self, run: Executor) -> bool:
        return await run.fetch_one(Sql(f"SELECT 1 FROM {self._table} LIMIT 1")) is not None

    def id_of(self, values: Sequence[Any]) -> Any:
        return values[self._id_place]

    def id_from_text(self, text: str) -> Any:
        """The id that `str` made this text of."""
        return _IDS.get(self.fields[self._id_place].kind, str)(text)

    # -- writing

    async def write(self, run: Executor, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, all or none."""
        parameters = [self._parameters(values) for values in rows]
        for statement in by_dialect(self._dialect, sqlite=self._insert_values, postgres=self._insert_arrays)(
            parameters
        ):
            await run.execute(statement)

    def _parameters(self, values: Sequence[Any]) -> list[Any]:
        return [
            value if convert is None or value is None else convert(value)
            for value, convert in zip(values, self._encoders, strict=True)
        ]

    def _insert_values(self, rows: Sequence[Sequence[Any]]) -> list[Sql]:
        width = len(self.fields)
        step = max(MOST_PARAMETERS // width, 1)
        marks = f"({', '.join('?' * width)})"
        head = f"INSERT INTO {self._table} ({', '.join(self._columns)}) VALUES "
        return [
            Sql(
                head + ", ".join([marks] * len(part)),
                tuple(value for row in part for value in row),
            )
            for part in (rows[start : start + step] for start in range(0, len(rows), step))
        ]

    def _insert_arrays(self, rows: Sequence[Sequence[Any]]) -> list[Sql]:
        """One array for each column; JSON arrives as text and becomes what the column is."""
        names = [f"c{place}" for place in range(len(self.fields))]
        arrays = ", ".join(
            f"${place + 1}::{_array_type(field.kind)}[]" for place, field in enumerate(self.fields)
        )
        values = ", ".join(
            f"d.{name}::json" if field.kind is Kind.JSON else f"d.{name}"
            for name, field in zip(names, self.fields, strict=True)
        )
        text = (
            f"INSERT INTO {self._table} ({', '.join(self._columns)})"
            f" SELECT {values} FROM unnest({arrays}) AS d ({', '.join(names)})"
        )
        return [Sql(text, tuple(list(column) for column in zip(*rows, strict=True)))]

    def _mark(self, place: int) -> str:
        return by_dialect(self._dialect, sqlite="?", postgres=f"${place}")

    # -- comparing

    def checksum(self, values: Sequence[Any]) -> int:
        """A number that tells rows apart, the same in every database."""
        plain = [
            None if value is None else _PLAIN[field.kind](value)
            for value, field in zip(values, self.fields, strict=True)
        ]
        digest = hashlib.blake2b(msgspec.msgpack.encode(plain), digest_size=16).digest()
        return int.from_bytes(digest, "big")

    def sum_rows(self, rows: Sequence[Row]) -> int:
        """The checksums of stored rows, added up: the sum is the same in any order."""
        return sum(self.checksum(self._values(row)) for row in rows) % _MODULUS


def add_checksums(one: int, other: int) -> int:
    return (one + other) % _MODULUS


def _array_type(kind: Kind) -> str:
    return "text" if kind is Kind.JSON else COLUMN_TYPES[Dialect.POSTGRES][kind][0]


def _text(value: Any) -> str:
    if isinstance(value, bytes):  # SQLite keeps what it is given
        return value.decode()
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return value


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("it is no whole number")
    return value


def _aware(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _same(value: Any) -> Any:
    return value


# What a stored value has to be, so that the other database takes it.
_CHECKS: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _text,
    Kind.INT: _whole_number,
    Kind.FLOAT: float,
    Kind.BOOL: bool,
    Kind.DECIMAL: _same,
    Kind.DATETIME: _aware,
    Kind.DATE: _same,
    Kind.TIME: _same,
    Kind.UUID: _same,
    Kind.BYTES: bytes,
    Kind.JSON: _text,
}
_IDS: Mapping[Kind, Callable[[str], Any]] = PartialTable({Kind.INT: int, Kind.UUID: UUID}, others="are texts")


def _plain_decimal(value: Decimal) -> str:
    return format(value or abs(value), "f")  # PostgreSQL has no negative zero


# A value as a checksum sees it.
_PLAIN: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _same,
    Kind.INT: _same,
    Kind.FLOAT: _same,
    Kind.BOOL: _same,
    Kind.DECIMAL: _plain_decimal,
    Kind.DATETIME: datetime.isoformat,
    Kind.DATE: date.isoformat,
    Kind.TIME: time.isoformat,
    Kind.UUID: str,
    Kind.BYTES: _same,
    Kind.JSON: _same,
}
