"""`db.invalidate`: keys of the application's own that a write makes invalid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from maniflex._caller import act_on
from maniflex.middleware.db.cache_query import OWN
from maniflex.middleware.db.cache_store import CarefulStore
from maniflex.middleware.stores.port import CacheStore, mistakes_of
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, ask
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next


class Invalidate(Entry):
    """Deletes keys when the write of the request is committed."""

    name = "db.invalidate"
    docs = describe_nothing
    homes: ClassVar = {"db": (At.AFTER,)}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})

    def __init__(self, store: CacheStore, keys: Any) -> None:
        super().__init__()
        self.stores = (store,)
        self._store = CarefulStore(store, self.name)
        self._keys = keys
        self.mistakes += mistakes_of((store,))
        if not callable(getattr(store, "delete", None)):
            self.mistakes.append(f"store={store!r} has no delete(); use one of maniflex.middleware.stores")
        if not callable(keys):
            self.mistakes.append(f"keys={keys!r} is not a function of (ctx)")

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in self.acts_for else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        keys = [str(key) for key in await ask(ctx, self._keys, ctx)]
        if keys:
            ctx.after_commit(partial(self._delete, [*keys, *(f"{OWN}{key}" for key in keys)], ctx.database()))
        await next()

    async def _delete(self, keys: list[str], database: object | None) -> None:
        with act_on(database):  # code of another server may have opened the transaction
            await self._store.delete(keys)


def invalidate(store: CacheStore, keys: Callable[[Context], Iterable[str] | Any]) -> Invalidate:
    """Delete the keys that `keys(ctx)` names once the request's write is committed, never after a rollback.

    They are keys that the application set in the store, and those of `cache_query(key=...)`.
    """
    return Invalidate(store, keys)
