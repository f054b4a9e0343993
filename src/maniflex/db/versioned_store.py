"""The store of a versioned model: its single writes and their history go to the database together.

On SQLite that is one batch, on PostgreSQL one statement behind the read of the row, instead of a transaction
of many calls; a deleted row does not even leave the database. Where a transaction is open, where others
listen too, where a delete reaches other records and where such a write finds anything unusual, the write seam
tells the history as it tells everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex._caller import caller
from maniflex._ids import new_id
from maniflex.db.cascade import deletion
from maniflex.db.changes import Change, ChangeKind
from maniflex.db.current import current_tx
from maniflex.db.history import HistoryWriter, author_of_changes
from maniflex.db.listened_store import ListenedStore
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.db.write_with_history import BatchWithHistory
from maniflex.errors import ConstraintViolation
from maniflex.model.base import Model
from maniflex.sql import history as sql
from maniflex.sql import select, write
from maniflex.sql.codec import returned_value
from maniflex.sql.history import delete_with_version
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.where import Scope, parent_keys


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
