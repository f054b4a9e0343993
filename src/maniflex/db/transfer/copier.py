"""Copies the data of an application from one database to another, and compares the two.

Rows go by id, a batch in a transaction together with the position it ends at, so a copy that was killed goes
on where it was. At the end both databases are read once more: they have to agree in the number of rows and in
the sum of their checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from maniflex.db.port import Adapter, Tx
from maniflex.db.transfer.journal import Journal, Position
from maniflex.db.transfer.table import CopiedTable, UncopiedValue, add_checksums
from maniflex.errors import ConfigError, RequestError
from maniflex.model.meta import Kind
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

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
