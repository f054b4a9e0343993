"""A store whose writes are told to listeners.

A class of its own, so that models without listeners pay nothing. Each write has a transaction, the open
one or its own, in which the listeners are told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from maniflex.db.changes import ChangeKind, ChangeListener, tell
from maniflex.db.current import transaction
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.model.base import Model
from maniflex.model.meta import Kind
from maniflex.sql.where import Scope


def listen(store: Store, listener: ChangeListener) -> None:
    """Tell `listener` of every change of the rows of this model from now on."""
    if not isinstance(store, ListenedStore):
        store.__class__ = ListenedStore
    store.listeners = (*store.listeners, listener)


class ListenedStore(Store):
    """Tells of its own writes; cascades and restored circles tell by themselves, and `revise` by `update`."""

    async def create(self, record: Model, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        async with self._transaction(tx) as own_tx:
            row = await super().create(record, scope=scope, tx=own_tx)
            await tell(self, ChangeKind.CREATE, own_tx, record.id, row)
            return row

    async def provision(self, record: Model) -> None:
        async with self._transaction(None) as own_tx:
            await super().provision(record)
            await tell(self, ChangeKind.CREATE, own_tx, record.id)

    async def update(
        self, record_id: str, changes: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row:
        async with self._transaction(tx) as own_tx:
            row = await super().update(record_id, changes, scope=scope, tx=own_tx)
            await tell(self, ChangeKind.UPDATE, own_tx, record_id, row)
            return row

    async def increment(
        self, record_id: str, deltas: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row:
        async with self._transaction(tx) as own_tx:
            row = await super().increment(record_id, deltas, scope=scope, tx=own_tx)
            if all(self.meta.by_name[name].kind is not Kind.DECIMAL for name in deltas):
                await tell(self, ChangeKind.UPDATE, own_tx, record_id, row)  # decimals are added by `update`
            return row

    async def delete(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> None:
        async with self._transaction(tx) as own_tx:
            await super().delete(record_id, scope=scope, tx=own_tx)
            if not self.links:
                await tell(self, ChangeKind.DELETE, own_tx, record_id)

    async def restore(
        self,
        record_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        check: Callable[[Row], Awaitable[None]] | None = None,
    ) -> Row:
        async with self._transaction(tx) as own_tx:
            row = await super().restore(record_id, changes, scope=scope, tx=own_tx, check=check)
            await tell(self, ChangeKind.RESTORE, own_tx, record_id, row)
            return row

    @asynccontextmanager
    async def _transaction(self, tx: Tx | None) -> AsyncIterator[Tx]:
        """The transaction handed over, the open one, or one for this write."""
        if tx is not None:
            yield tx
        else:
            async with transaction(self.adapter) as own_tx:
                yield own_tx
