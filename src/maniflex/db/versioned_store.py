"""The store of a versioned model: its single writes and their history go to the database together.

On SQLite that is one batch, on PostgreSQL one statement behind the read of the row, instead of a transaction
of many calls; a deleted row does not even leave the database. Where a transaction is open, where others
listen too, where a delete reaches other records and where such a write finds anything unusual, the write seam
tells the history as it tells everybody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec

from maniflex._caller import Source, caller
from maniflex._ids import new_id
from maniflex.db.budget import Budget
from maniflex.db.cascade import deletion
from maniflex.db.changes import Change, ChangeKind, ChangeListener, images, tell
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import BatchStatement, Row, Tx
from maniflex.db.redacted import Differences, Redaction
from maniflex.db.store import Store
from maniflex.errors import ConstraintViolation
from maniflex.model.base import Model
from maniflex.model.history_row import HistoryOperation
from maniflex.model.meta import Kind
from maniflex.sql import history as sql
from maniflex.sql import select, write
from maniflex.sql.bindings import BEFORE, THEN
from maniflex.sql.codec import returned_value
from maniflex.sql.history import MOST_FIELDS, Author, HistoryEntry, ToldFields, append, delete_with_version
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.where import Scope, parent_keys

# A store whose writes are told to listeners.
#
# A class of its own, so that models without listeners pay nothing. Each write has a transaction, the open
# one or its own, in which the listeners are told.


def listen(store: Store, listener: ChangeListener) -> None:
    """Tell `listener` of every change of the rows of this model from now on."""
    if store.meta.options.backend is None and not isinstance(store, ListenedStore):
        store.__class__ = ListenedStore  # a store with a backend tells by itself
    store.listeners = (*store.listeners, listener)
    store.needs_rows = store.needs_rows or listener.needs_rows


class ListenedStore(Store):
    """Tells of writes of single rows; what removes rows and brings them back tells by itself."""

    async def create(self, record: Model, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        async with self._transaction(tx) as own_tx:
            row = await super().create(record, scope=scope, tx=own_tx)
            await tell(self, ChangeKind.CREATE, own_tx, record.id, after=row)
            return row

    async def provision(self, record: Model) -> Row | None:
        async with self._transaction(None) as own_tx:
            row = await super().provision(record)
            if row is not None:
                await tell(self, ChangeKind.CREATE, own_tx, record.id, after=row, source=Source.PROVISION)
            return row

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        held: Row | None = None,
    ) -> Row:
        async with self._transaction(tx) as own_tx:
            if held is None and self.needs_rows:
                held = await self.lock_unchanged(record_id, tx=own_tx, scope=scope)
            row = await super().update(record_id, changes, scope=scope, tx=own_tx, held=held)
            await tell(self, ChangeKind.UPDATE, own_tx, record_id, before=held, after=row)
            return row

    async def note_unchanged(self, record_id: str, row: Row, tx: Tx | None = None) -> Row:
        async with self._transaction(tx) as own_tx:
            await tell(self, ChangeKind.UPDATE, own_tx, record_id, before=row, after=row)
            return row

    async def increment(
        self, record_id: str, deltas: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row:
        if any(self.meta.by_name[name].kind is Kind.DECIMAL for name in deltas if name in self.meta.by_name):
            return await super().increment(record_id, deltas, scope=scope, tx=tx)  # by `update`, which tells
        async with self._transaction(tx) as own_tx:
            before = await images(self, own_tx, [record_id]) if self.needs_rows else []
            row = await super().increment(record_id, deltas, scope=scope, tx=own_tx)
            held = before[0] if before else None
            await tell(self, ChangeKind.UPDATE, own_tx, record_id, before=held, after=row)
            return row

    @asynccontextmanager
    async def _transaction(self, tx: Tx | None) -> AsyncIterator[Tx]:
        """The transaction handed over, the open one, or one for this write."""
        if tx is not None:
            yield tx
        else:
            async with transaction(self.adapter) as own_tx:
                yield own_tx


def keep_history(store: Store, history: Store, *, snapshots: bool) -> None:
    """Write every change of the store's rows to its history."""
    store.__class__ = by_dialect(
        store.adapter.dialect, sqlite=SqliteVersionedStore, postgres=PostgresVersionedStore
    )
    assert isinstance(store, VersionedStore)
    store.writer = HistoryWriter(store, history, snapshots=snapshots)
    store.listeners, store.needs_rows = (store.writer,), True


class VersionedStore(ListenedStore):
    """Rows of a model that keeps its history."""

    writer: HistoryWriter

    def _writes_alone(self, tx: Tx | None) -> bool:
        """Whether a write is a transaction of its own that nobody else is told of."""
        return tx is None and len(self.listeners) == 1 and current_tx(self.adapter) is None

    async def delete(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> None:
        fields = self.writer.told_of_delete
        is_quick = not self.links and fields is not None and self._writes_alone(tx)
        if not is_quick or not await self._delete_quickly(record_id, scope):
            await super().delete(record_id, scope=scope, tx=tx)

    async def _delete_quickly(self, record_id: str, scope: Scope) -> bool:
        """Delete the row unseen; False, with nothing changed, where that is not possible."""
        writer, now = self.writer, self.clock.now()
        fields, stamps = writer.told_of_delete, deletion(self.meta, now)
        assert fields is not None
        version = (new_id(), now, caller())
        statements = delete_with_version(
            self.sql, writer.history.sql, fields, record_id, stamps, scope, version
        )
        try:
            if len(statements) == 1:
                return bool(await self.adapter.write(statements[0]))
            return bool((await self.adapter.batch(statements))[-1])
        except ConstraintViolation:  # another has changed the row at the same time, and made that version
            return False


class SqliteVersionedStore(VersionedStore):
    """Writes in one batch: the row before, the write, its version, and what that lacks."""

    async def create(self, record: Model, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        if not self._writes_alone(tx):
            return await super().create(record, scope=scope, tx=tx)
        run: Any = BatchWithHistory(self, self.writer, ChangeKind.CREATE, record.id)
        return await Store.create(self, record, scope=scope, tx=run)

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        held: Row | None = None,
    ) -> Row:
        if not self._writes_alone(tx):
            return await super().update(record_id, changes, scope=scope, tx=tx, held=held)
        before = select.one(self.sql, record_id, scope)
        run: Any = BatchWithHistory(self, self.writer, ChangeKind.UPDATE, record_id, before)
        return await Store.update(self, record_id, changes, scope=scope, tx=run)


class PostgresVersionedStore(VersionedStore):
    """Reads the row, then writes it with its version if it is still the same; otherwise as everybody does."""

    async def create(self, record: Model, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        if not self._writes_alone(tx):
            return await super().create(record, scope=scope, tx=tx)
        values = {**record.__dict__, "created_at": (now := self.clock.now()), "updated_at": now}
        self._indexed.check(values)
        references = await self.references.to_check(values, scope) if self.references is not None else ()
        if references or (scope and parent_keys(self.meta, scope)):
            statement = write.insert_referring(self.sql, values, references, scope)
        else:
            statement = write.insert(self.sql, values)
        rows = await self._write(ChangeKind.CREATE, record.id, statement, None, values)
        if not rows:
            raise await self._dangling(references, values, scope, tx)
        return rows[0] if self.decode is None else self.decode(rows[0])

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        held: Row | None = None,
    ) -> Row:
        row = await self._current(record_id, scope) if self._writes_alone(tx) else None
        if row is not None:
            values = {**changes, "updated_at": self.clock.now()}
            if self._indexed.can_change:
                self._indexed.check(changes)
            references = await self.references.to_check(changes, scope) if self.references is not None else ()
            statement = write.update(self.sql, record_id, values, scope, references, row[-2])
            rows = await self._write(ChangeKind.UPDATE, record_id, statement, row, values)
            if rows:
                return rows[0] if self.decode is None else self.decode(rows[0])
        return await super().update(record_id, changes, scope=scope, tx=tx, held=held)

    async def _current(self, record_id: str, scope: Scope) -> Row | None:
        """The row with its version, if there is one that has a history."""
        statement = sql.current(self.sql, self.writer.history.sql, record_id, scope)
        row = await self.adapter.fetch_one(statement)
        return row if row is not None and row[-1] else None

    async def _write(
        self, kind: ChangeKind, record_id: str, statement: Sql, row: Row | None, values: Mapping[str, Any]
    ) -> Sequence[Row]:
        """Run the write and its history, unless another has changed the row since it was read."""
        before = None if row is None else row[:-2] if self.decode is None else self.decode(row[:-2])
        after = None
        if values:
            fields = zip(self.meta.fields, before or self.meta.fields, strict=True)
            after = [returned_value(f.kind, values[f.name]) if f.name in values else old for f, old in fields]
        change = Change(self.meta, kind, record_id, before, after, caller().source)
        entries = self.writer.entries((change,))
        if entries:
            statement = sql.append_with(self.writer.history.sql, statement, entries[0], author_of_changes())
        return await self.execute_write(statement, self.adapter)


# Writes the histories of versioned models: a listener of the write seam, in the transaction of the write.
#
# One row for each record that changed, all rows of a batch in one statement. A change that leaves every
# value as it was has none; one that changes secrets alone has an empty diff. What fails here fails the
# write.


Diff = dict[str, dict[str, Any]]
_encode = msgspec.json.Encoder().encode
_NULL = {"old": None, "new": None}


class HistoryWriter:
    """Keeps the history of one model."""

    needs_rows = True

    def __init__(self, store: Store, history: Store, *, snapshots: bool) -> None:
        meta = store.meta
        marker = meta.soft_delete
        self.history = history
        self._snapshots = snapshots
        self._clock = store.clock
        self._redaction = Redaction(meta)
        self._differences = Differences(meta)
        self.told_of_delete = self._told_of_delete()
        self._moment = store.sql.names.index("updated_at")
        self._marker = None if marker is None else store.sql.names.index(marker.field)
        own_names = dict.fromkeys(place.own_name for place in history.sql.binding_places)
        self._own_places = [(name, store.sql.names.index(name)) for name in own_names]

    def _told_of_delete(self) -> ToldFields | None:
        """The fields that the version of a delete has; None where there are too many for one statement."""
        kept = [field for _, field in self._redaction.kept]
        if len(kept) > MOST_FIELDS:
            return None
        return ToldFields(self._differences.fields, kept if self._snapshots else None)

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """Add a version of every record that has really changed."""
        author = author_of_changes()
        for some in _by_beginning(changes):
            entries = self.entries(some)
            sql = self.append(some, entries, author)
            rows = [] if sql is None else await tx.write(sql)
            rest = self.append_rest(some, entries, rows, author)
            if rest is not None:
                await tx.write(rest)

    def entries(self, changes: Sequence[Change]) -> list[HistoryEntry]:
        """The versions that these changes make."""
        return [entry for change in changes for entry in self._entry(change)]

    def append(
        self, changes: Sequence[Change], entries: Sequence[HistoryEntry], author: Author
    ) -> Sql | None:
        """What adds them, as far as their records have a history or begin one; all of them do, or none."""
        if not entries:
            return None
        known = changes[0].operation is not ChangeKind.CREATE
        return append(self.history.sql, entries, author, known=known)

    def append_rest(
        self,
        changes: Sequence[Change],
        entries: Sequence[HistoryEntry],
        rows: Sequence[Row],
        author: Author,
    ) -> Sql | None:
        """What adds those that `append` left out: they come behind the states that their changes found."""
        if len(rows) == len(entries):
            return None
        told_ids = {row[0] for row in rows}
        missing = {entry.record_id: entry for entry in entries if entry.record_id not in told_ids}
        return append(self.history.sql, list(self._with_baselines(changes, missing)), author, known=False)

    def _with_baselines(
        self, changes: Sequence[Change], missing: dict[str, HistoryEntry]
    ) -> Iterator[HistoryEntry]:
        """The entries of records that were there before their history, each behind the state it found."""
        for change in changes:
            entry = missing.get(change.id or "")
            if entry is None or change.before is None:
                continue
            is_deleted = self._marker is not None and bool(change.before[self._marker])
            diff = {} if is_deleted else self._all_values(change.before, "new")
            moment = min(change.before[self._moment], entry.timestamp)
            yield self._make(change, HistoryOperation.BASELINE, diff, change.before, moment)
            yield entry._replace(id=new_id(), step=2)  # ids rise with the versions

    def _entry(self, change: Change) -> Iterator[HistoryEntry]:
        """The version that a change makes, if it makes one."""
        before, after = change.before, change.after
        match change.operation:
            case ChangeKind.CREATE | ChangeKind.RESTORE:
                assert after is not None
                diff, shown = self._all_values(after, "new"), after
            case ChangeKind.DELETE:
                assert before is not None
                diff, shown = self._all_values(before, "old"), before
            case ChangeKind.UPDATE:
                assert before is not None
                assert after is not None
                differences = self._differences.between(before, after)
                diff = {name: {"old": old, "new": new} for name, (old, new) in differences.items()}
                shown = after
                if not diff and all(before[i] == after[i] for i in self._redaction.dropped):
                    return
        moment = self._clock.now() if after is None else after[self._moment]
        yield self._make(change, HistoryOperation(change.operation), diff, shown, moment)

    def _make(
        self, change: Change, operation: HistoryOperation, diff: Diff, row: Row, moment: datetime
    ) -> HistoryEntry:
        snapshot = _encode(self._redaction(row)).decode() if self._snapshots else None
        before = change.before if operation is HistoryOperation.UPDATE else None
        return HistoryEntry(
            new_id(),
            change.id or "",
            1,
            operation.value,
            moment,
            change.source.value,
            _encode(diff).decode(),
            snapshot,
            self._own_values(row, before or row) if self._own_places else None,
        )

    def _own_values(self, row: Row, before: Row) -> str:
        """What the record is bound by, in the version and in the state that it found."""
        values = {name: {THEN: row[place], BEFORE: before[place]} for name, place in self._own_places}
        return _encode(values).decode()

    def _all_values(self, row: Row, side: str) -> Diff:
        """The fields that have a value, all on one side."""
        return {name: {**_NULL, side: value} for name, value in self._differences.values(row)}


def author_of_changes() -> Author:
    """Who makes changes here."""
    who = caller()
    return Author(who.actor_id, who.tenant_id, who.request_id, who.reason)


def _by_beginning(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """New records apart from those that were there."""
    new_records = [change for change in changes if change.operation is ChangeKind.CREATE]
    others = [change for change in changes if change.operation is not ChangeKind.CREATE]
    yield from (some for some in (new_records, others) if some)


# What runs the one write of a versioned store together with its history; a store takes it for a
# transaction.
#
# Reads go to the database as they are: a store asks it why a write touched nothing.


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
