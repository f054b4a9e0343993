"""A store whose writes are told to listeners.

A class of its own, so that models without listeners pay nothing. Each write has a transaction, the open
one or its own, in which the listeners are told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from maniflex._caller import Source
from maniflex.db.changes import ChangeKind, ChangeListener, images, tell
from maniflex.db.current import transaction
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.model.base import Model
from maniflex.model.meta import Kind
from maniflex.sql.where import Scope


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
