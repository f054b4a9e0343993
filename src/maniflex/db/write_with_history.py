"""What runs the one write of a versioned store together with its history; a store takes it for a transaction.

Reads go to the database as they are: a store asks it why a write touched nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maniflex._caller import caller
from maniflex.db.budget import Budget
from maniflex.db.changes import Change, ChangeKind
from maniflex.db.history import HistoryWriter, author_of_changes
from maniflex.db.port import BatchStatement, Row
from maniflex.sql.history import HistoryEntry
from maniflex.sql.statement import Dialect, Sql

if TYPE_CHECKING:
    from maniflex.db.store import Store


class BatchWithHistory:
    """The row before, the write, its version, and what that lacks, in one transaction of the database."""

    read_versions = None

    def __init__(
        self,
        store: Store,
        writer: HistoryWriter,
        kind: ChangeKind,
        record_id: str,
        before: Sql | None = None,
        marks: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._kind = kind
        self._id = record_id
        self._before = before
        self._marks = marks
        self._source = caller().source  # here, because batches run on a thread
        self._author = author_of_changes()
        self._changes: Sequence[Change] = ()
        self._entries: Sequence[HistoryEntry] = ()

    @property
    def dialect(self) -> Dialect:
        return self._store.adapter.dialect

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        return await self._store.adapter.fetch(sql, budget)

    async def fetch_one(self, sql: Sql) -> Row | None:
        return await self._store.adapter.fetch_one(sql)

    async def write(self, sql: Sql) -> list[Row]:
        """The rows that the write gives back."""
        first: tuple[BatchStatement, ...] = () if self._before is None else (self._before,)
        last = () if self._kind is ChangeKind.CREATE else (self._append_rest,)
        rows = await self._store.adapter.batch((*first, sql, self._append, *last))
        return rows[len(first)]

    def _append(self, rows: Sequence[list[Row]]) -> Sql | None:
        if not rows[-1]:  # nothing was written
            self._entries = ()
            return None
        before, after = self._images(rows)
        self._changes = (Change(self._store.meta, self._kind, self._id, before, after, self._source),)
        self._entries = self._writer.entries(self._changes)
        return self._writer.append(self._changes, self._entries, self._author)

    def _images(self, rows: Sequence[list[Row]]) -> tuple[Row | None, Row | None]:
        """The row as it was and as it is; the first statement gives what was, if there is one for it."""
        written = self._decode(rows[-1][0])
        if self._kind is ChangeKind.CREATE:
            return None, written
        if self._kind is ChangeKind.DELETE and not self._marks:
            return written, None
        return self._decode(rows[0][0]), written

    def _append_rest(self, rows: Sequence[list[Row]]) -> Sql | None:
        if not self._entries:
            return None
        return self._writer.append_rest(self._changes, self._entries, rows[-1], self._author)

    def _decode(self, row: Row) -> Row:
        return row if self._store.decode is None else self._store.decode(row)
