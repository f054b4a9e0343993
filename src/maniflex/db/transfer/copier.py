"""Copies the data of an application from one database to another, and compares the two.

Rows go by id, a batch in a transaction together with the position it ends at, so a copy that was killed goes
on where it was. At the end both databases are read once more: they have to agree in the number of rows and in
the sum of their checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from maniflex._tables import PartialTable
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.errors import ConfigError, ManiflexError, RequestError
from maniflex.model.meta import Kind
from maniflex.sql.codec import decoder, encoder
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import COLUMN_TYPES, find_table, quote

BATCH = 2000  # rows
FIRST_BATCH = 50
BATCH_BYTES = 8 << 20
MOST_NAMED = 5
OnRows = Callable[[int], object]
_SEQUENCES = (
    "SELECT relname FROM pg_class WHERE relkind = 'S' AND relname = ANY($1) AND pg_table_is_visible(oid)"
)


class _Undo(Exception):
    """Ends a transaction that only tries something."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table in both databases."""

    name: str
    source_rows: int
    target_rows: int
    is_same: bool  # as many rows, and the same checksums
    differing_ids: tuple[str, ...] = ()  # the first of them


class Copier:
    """The copy of some models from one database to another."""

    def __init__(
        self, source: Adapter, target: Adapter, models: Sequence[tuple[ModelSql, ModelSql]], *, label: str
    ) -> None:
        """`models` are those of the source with those of the target; `label` names the source."""
        self.source, self.target = source, target
        self.tables = [(CopiedTable(ours), CopiedTable(theirs)) for ours, theirs in models]
        self._journal = Journal(target, label)

    async def begin(self) -> dict[str, Position]:
        """Where each table is to be copied from; refuses a target that has rows of its own.

        Nowhere if all rows are there: a copy that was killed at its very end has nothing left to copy.
        """
        if not await self._journal.exists():
            tables_with_rows = [
                theirs.name for _, theirs in self.tables if await theirs.has_rows(self.target)
            ]
            if tables_with_rows and await self._is_complete():
                return {}
            if tables_with_rows:
                more = (
                    f" and {len(tables_with_rows) - MOST_NAMED} more"
                    if len(tables_with_rows) > MOST_NAMED
                    else ""
                )
                names = ", ".join(tables_with_rows[:MOST_NAMED])
                raise ConfigError(
                    f"{self.target.label} has rows already, in {names}{more}; copy into an empty database"
                )
            await self._journal.begin([theirs.name for _, theirs in self.tables])
        positions = await self._journal.positions()
        missing = [theirs.name for _, theirs in self.tables if theirs.name not in positions]
        if missing:
            raise ConfigError(
                f"a copy was begun here before the application had {', '.join(missing[:MOST_NAMED])};"
                " empty this database and begin anew"
            )
        return positions

    async def _is_complete(self) -> bool:
        """Whether the target has exactly the rows of the source."""
        for ours, theirs in self.tables:
            if await ours.count(self.source) != await theirs.count(self.target):
                return False
        return all(report.is_same for report in await self.compare(lambda count: None))

    async def copy(self, positions: dict[str, Position], on_rows: OnRows, batch: int = BATCH) -> int:
        """Copy the remaining rows; returns their number."""
        count = 0
        for ours, theirs in self.tables if positions else ():
            position = positions[theirs.name]
            limit = min(FIRST_BATCH, batch)
            while rows := await ours.read(self.source, _id_of(ours, position), limit):
                following = Position(str(ours.id_of(rows[-1])), position.copied + len(rows))
                await self._write(theirs, rows, position, following)
                position = following
                count += len(rows)
                on_rows(count)
                limit = next_limit(limit, rows, batch)
        return count

    async def _write(
        self, theirs: CopiedTable, rows: Sequence[Sequence[Any]], before: Position, after: Position
    ) -> None:
        try:
            async with self.target.transaction() as tx:
                await theirs.write(tx, rows)
                await self._journal.advance(tx, theirs.name, before, after)
        except RequestError as error:
            if error.retryable:
                raise
            raise await self._row_at_fault(theirs, rows, error) from error

    async def _row_at_fault(
        self, theirs: CopiedTable, rows: Sequence[Sequence[Any]], error: RequestError
    ) -> Exception:
        """Which row the target refuses; nothing that is tried here stays."""
        for values in rows:
            try:
                async with self.target.transaction() as tx:
                    await theirs.write(tx, [values])
                    raise _Undo
            except _Undo:
                continue
            except RequestError as refusal:
                why = refusal.__cause__ or refusal.message
                return UncopiedValue(
                    f"{theirs.name} {theirs.id_of(values)}: {self.target.label} refuses it: {why}"
                )
        return error

    async def compare(self, on_rows: OnRows) -> list[TableReport]:
        """Every table in both databases."""
        reports, count = [], 0
        for ours, theirs in self.tables:
            sums = []
            for adapter, table in ((self.source, ours), (self.target, theirs)):
                rows, checksum = 0, 0
                async with aclosing(adapter.stream(table.whole())) as pages:
                    async for page in pages:
                        rows, checksum = rows + len(page), add_checksums(checksum, table.sum_rows(page))
                        count += len(page)
                        on_rows(count)
                sums.append((rows, checksum))
            is_same = sums[0] == sums[1]
            ids = () if is_same else await self._differing_ids(ours, theirs)
            reports.append(TableReport(theirs.name, sums[0][0], sums[1][0], is_same, ids))
        return reports

    async def _differing_ids(self, ours: CopiedTable, theirs: CopiedTable) -> tuple[str, ...]:
        """The first ids whose rows differ, or are in one database alone."""
        ids: list[str] = []
        after: Any = None
        while len(ids) < MOST_NAMED:
            source_rows = {ours.id_of(row): row for row in await ours.read(self.source, after, BATCH)}
            target_rows = {theirs.id_of(row): row for row in await theirs.read(self.target, after, BATCH)}
            if not source_rows and not target_rows:
                break
            ends = [max(rows) for rows in (source_rows, target_rows) if len(rows) == BATCH]
            end = min(ends) if ends else None  # beyond it, one of the two was not read
            for id in sorted({*source_rows, *target_rows}):
                if end is not None and id > end:
                    break
                pair = source_rows.get(id), target_rows.get(id)
                if pair[0] is None or pair[1] is None or ours.checksum(pair[0]) != theirs.checksum(pair[1]):
                    ids.append(str(id))
            if end is None:
                break
            after = end
        return tuple(ids[:MOST_NAMED])

    async def finish(self) -> None:
        """Let the sequences of the target go on behind the numbers that were copied; forget the positions."""
        async with self.target.transaction() as tx:
            if by_dialect(tx.dialect, sqlite=False, postgres=True):
                await self._set_sequences(tx)
            await self._journal.end(tx)

    async def _set_sequences(self, tx: Tx) -> None:
        """A sequence is named after its table and column."""
        columns = {
            f"{theirs.name}_{field.column}": (theirs.name, field.column)
            for _, theirs in self.tables
            for field in theirs.fields
            if field.kind is Kind.INT
        }
        rows = await tx.fetch(Sql(_SEQUENCES, (list(columns),)))
        for (name,) in rows:
            table, column = (quote(part, tx.dialect) for part in columns[name])
            highest = f"(SELECT max({column}) FROM {table})"
            await tx.fetch(Sql(f"SELECT setval($1, greatest({highest}, 1))", (name,)))

    async def count_rows(self) -> int:
        """How many rows the source has."""
        return sum([await ours.count(self.source) for ours, _ in self.tables])


def _id_of(table: CopiedTable, position: Position) -> Any:
    return None if position.last_id is None else table.id_from_text(position.last_id)


def next_limit(limit: int, rows: Sequence[Sequence[Any]], batch: int) -> int:
    """How many rows to read next, so that a batch of large ones fits into memory."""
    size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
    fitting = BATCH_BYTES * len(rows) // max(size, 1)
    return max(min(limit * 4, fitting, batch), 1)


# How far a copy has come: kept in the target and written with the rows, so a killed copy goes on there.


TABLE = "maniflex_copy"
_SCHEMA = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    name text PRIMARY KEY, source text NOT NULL, last_id text, copied bigint NOT NULL)"""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the copy of one table is."""

    last_id: str | None
    copied: int


class Journal:
    """The positions of all tables."""

    def __init__(self, target: Adapter, source: str) -> None:
        self._target = target
        self._source = source

    async def exists(self) -> bool:
        """Whether a copy was begun and not finished."""
        return await self._target.fetch_one(find_table(TABLE, self._target.dialect)) is not None

    async def begin(self, tables: list[str]) -> None:
        """Note that nothing of these tables is copied yet."""
        async with self._target.transaction() as tx:
            await tx.execute(Sql(_SCHEMA))
            for name in tables:
                await tx.execute(
                    self._bind("INSERT INTO {table} VALUES ({1}, {2}, NULL, 0)", name, self._source)
                )

    async def positions(self) -> dict[str, Position]:
        """Where the copy of each table is; refuses a copy of another source."""
        rows = await self._target.fetch(Sql(f"SELECT name, source, last_id, copied FROM {TABLE}"))
        others = {row[1] for row in rows} - {self._source}
        if others:
            names = ", ".join(sorted(others))
            raise ConfigError(f"a copy from {names} was begun here; finish that one, or empty this database")
        return {row[0]: Position(row[2], int(row[3])) for row in rows}

    async def advance(self, tx: Tx, table: str, before: Position, after: Position) -> None:
        """Move on with the rows of the transaction; refuses when another copy has moved on meanwhile."""
        count = await tx.execute(
            self._bind(
                "UPDATE {table} SET last_id = {1}, copied = {2} WHERE name = {3} AND copied = {4}",
                after.last_id,
                after.copied,
                table,
                before.copied,
            )
        )
        if not count:
            raise ConfigError(f"another copy into this database is under way: it has moved on in {table}")

    async def end(self, run: Executor) -> None:
        """Forget the positions: the copy is finished."""
        await run.execute(Sql(f"DROP TABLE IF EXISTS {TABLE}"))

    def _bind(self, text: str, *values: object) -> Sql:
        marks = by_dialect(
            self._target.dialect,
            sqlite=["?"] * len(values),
            postgres=[f"${n + 1}" for n in range(len(values))],
        )
        return Sql(text.format(None, *marks, table=TABLE), values)


# The rows of one model on their way from one database to another.
#
# Values are read as the source keeps them, turned into Python's types and written as the target keeps
# them; JSON goes as the text it is. The target makes derived values itself, such as the words of a
# search.


MOST_PARAMETERS = 30_000  # SQLite takes 32,766
_MODULUS = 1 << 128


class UncopiedValue(ManiflexError):
    """A stored value is none of its field, so that no other database can take it."""


class CopiedTable:
    """One table in one of the two databases: its rows as values, and values as its rows."""

    def __init__(self, model: ModelSql) -> None:
        self.model = model
        self.name = str(model.table.name)
        self.fields = model.meta.stored
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
