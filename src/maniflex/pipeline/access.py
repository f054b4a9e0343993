"""The database as code uses it, bound by scope rules or explicitly not; and a request in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from maniflex._names import did_you_mean
from maniflex.db import aggregates as analysis
from maniflex.db.current import require_tx
from maniflex.db.port import Adapter, Isolation, Tx
from maniflex.db.raw import execute_raw, query_raw
from maniflex.db.records import Records
from maniflex.db.store import Store
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.scope import require_binding
from maniflex.pipeline.search import search, stores_to_search
from maniflex.query.aggregate import build
from maniflex.query.conditions import ConditionReader, Where
from maniflex.query.query import (
    Forced,
    Narrowed,
    Query,
    Scope,
    leaves,
    models_along,
    through_record,
    with_conditions,
)

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context
    from maniflex.pipeline.registration import Next
    from maniflex.pipeline.rules.model_rules import ServerRules
    from maniflex.pipeline.rules.scopes import TableRule
    from maniflex.pipeline.runtime import Runtime
    from maniflex.pipeline.search import SearchHit

M = TypeVar("M", bound=Model)


class DatabaseAccess:
    """What a context offers of the database; all of it obeys `forced` and `rules`, except raw SQL."""

    runtime: Runtime

    @property
    def forced(self) -> Scope:
        """The conditions that bind everything asked for here."""
        return ()

    @property
    def rules(self) -> ServerRules | None:
        """The rules whose conditions bind code here; None where there are none."""
        return None

    async def scope_of(self, model: ModelMeta, operation: str, reached: Iterable[str] = ()) -> Scope:
        """The conditions on what code does to a model, and on the rows of other models it reaches thereby."""
        parent = getattr(model.cls, "__history_of__", None)
        if parent is not None:  # whose rows they are is said by the record they tell of
            meta, models = self.runtime.stores[parent].meta, self.runtime.stores[parent].models
            scope = await self.scope_of(meta, Operation.READ)
            return through_record(model, Query(meta, models, forced=scope))
        scope = self.forced
        rules = self.rules
        if rules is None:
            return scope
        own = rules[model.cls].binding(Operation(operation))
        return await self.scope_with(with_conditions(scope, await self._conditions(own)), reached)

    async def scope_with(self, scope: Scope, reached: Iterable[str]) -> Scope:
        """The scope, and the conditions on the rows of other models that are reached."""
        rules = self.rules
        if rules is None:
            return scope
        for name in dict.fromkeys(reached):
            binding = rules.of_name(name).binding_reached
            if binding:
                scope = with_conditions(scope, await self._conditions(binding))
        return scope

    async def _conditions(self, rules: Iterable[TableRule]) -> list[Forced | Narrowed]:
        return [condition for rule in rules for condition in await self._conditions_by(rule)]

    async def _conditions_by(self, rule: TableRule) -> Sequence[Forced | Narrowed]:
        raise NotImplementedError  # who has rules says who is asking

    async def hidden_fields(self, model: ModelMeta) -> tuple[FieldMeta, ...]:
        """The fields that are left out of excerpts and trees, because the caller may not see them."""
        return ()

    def require_raw_sql(self) -> None:
        """Refuse SQL of the application where no rule could bind it."""

    @property
    def adapter(self) -> Adapter:
        """The database that raw SQL and transactions go to."""
        return self.runtime.adapter

    @overload
    def db(self, model: type[M]) -> Records[M]: ...
    @overload
    def db(self, model: str) -> Records[Any]: ...
    def db(self, model: type[Model] | str) -> Records[Any]:
        """Typed access to the records of a model, inside the open transaction if there is one."""
        return Records(self.runtime.store(model), bound=self)

    def adapter_on(self, on: type[Model] | str | None) -> Adapter:
        """The database of the model that is named, or the one that is meant where none is."""
        return self.adapter if on is None else self.runtime.adapter_of(on)

    def transaction(
        self,
        isolation: Isolation | str | None = None,
        *,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction on the default database, or on that of the model `on`; or join the open one."""
        raise NotImplementedError  # of requests and of blocks there are two ways

    @asynccontextmanager
    async def batch(self, *, on: type[Model] | str | None = None) -> AsyncIterator[WriteBatch]:
        """Several writes that are stored together or not at all; joins the open transaction, or opens one.

        It is on the database of the model `on`; without one on that of the route's model, or the default.
        """
        async with self.transaction(on=on):
            yield WriteBatch(self, self.adapter_on(on))

    async def raw_query(
        self, sql: str, *args: Any, on: type[Model] | str | None = None
    ) -> list[dict[str, Any]]:
        """Rows of a SELECT with `?` placeholders, from the database of the model `on`."""
        self.require_raw_sql()
        return await query_raw(self.adapter_on(on), sql, args)

    async def raw_exec(self, sql: str, *args: Any, on: type[Model] | str | None = None) -> int:
        """Run any other statement with `?` placeholders; returns how many rows it touched."""
        self.require_raw_sql()
        return await execute_raw(self.adapter_on(on), sql, args)

    async def aggregate(
        self,
        model: type[Model] | str,
        *,
        select: Iterable[Any],
        group_by: str | Iterable[str] | None = None,
        where: Where | None = None,
        having: Iterable[Any] | None = None,
        order_by: str | Iterable[Any] | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Counts, sums and the like over the records inside the forced scope, one row for each group.

        `select` holds `(op, field, alias)`; every part also takes the form it has in a request.
        """
        store = self.runtime.store(model)
        aggregation = build(
            Query(store.meta, store.models),
            select=select,
            group_by=group_by,
            where=where,
            having=having,
            order_by=order_by,
            limit=limit,
        )
        model_names = (name for item in leaves(aggregation.filters) for name in models_along(item.path))
        scope = await self.scope_of(store.meta, Operation.LIST, model_names)
        return await analysis.aggregate(store, aggregation, scope=require_binding(store, scope))

    async def recursive_query(
        self,
        model: type[Model] | str,
        *,
        root_id: str,
        parent_field: str,
        direction: str = "descendants",
        max_depth: int = 0,
        where: Where | None = None,
    ) -> list[dict[str, Any]]:
        """A record and its descendants (or ancestors) inside the forced scope, with their `_depth`."""
        store = self.runtime.store(model)
        reader = ConditionReader(Query(store.meta, store.models))
        conditions = reader.conditions(where) if self.rules is not None else ()
        model_names = (name for item in conditions for name in models_along(item.path))
        scope = await self.scope_of(store.meta, Operation.LIST, model_names)
        return await analysis.tree(
            store,
            root_id=root_id,
            parent_field=parent_field,
            direction=direction,
            max_depth=max_depth,
            where=where,
            scope=require_binding(store, scope),
            hidden=await self.hidden_fields(store.meta),
        )

    async def search(
        self,
        query: str,
        models: type[Model] | str | Iterable[type[Model] | str] | None = None,
        limit: int = 20,
        per_model_limit: int = 0,
    ) -> list[SearchHit]:
        """Hits among these models (or all `global_searchable` ones), best first, inside the forced scope.

        `per_model_limit` gives each model that many places before the best of the rest fill up.
        """
        scope = self.forced
        hidden_by_store: dict[Store, tuple[FieldMeta, ...]] = {}
        if self.rules is not None or self.runtime.rules.has_redactions:
            stores = stores_to_search(self.runtime, models, scope)
            scope = await self.scope_with(scope, [store.meta.name for store in stores])
            hidden_by_store = {store: await self.hidden_fields(store.meta) for store in stores}
        return await search(
            self.runtime,
            query,
            models,
            limit=limit,
            per_model_limit=per_model_limit,
            scope=scope,
            hidden=hidden_by_store,
        )

    async def lock_for_update(self, model: type[M], id: str) -> M:
        """Lock the record against changes by others until the transaction ends, and return it.

        A retryable conflict if the transaction has read it before and it has changed since.
        """
        store = self.runtime.store(model)
        tx = tx_to_lock_in(store, self.adapter, "ctx")
        scope = require_binding(store, await self.scope_of(store.meta, Operation.UPDATE))
        return store.record(await store.lock_as_read(id, tx=tx, scope=scope))  # type: ignore[return-value]  # the store of M


class WriteBatch:
    """Writes of one transaction, all of them on one database."""

    def __init__(self, access: DatabaseAccess, adapter: Adapter) -> None:
        self._access = access
        self._adapter = adapter

    async def create(
        self, model: type[M], record: M | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> M:
        """Store a new record, given whole or by its fields, as `db(model).create` does."""
        return await self._records(model).create(record, **fields)

    async def create_many(self, model: type[M], records: Iterable[M | Mapping[str, Any]]) -> list[M]:
        """Store many new records, as `db(model).create_many` does."""
        return await self._records(model).create_many(records)

    async def update(
        self, model: type[M], id: str, changes: M | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> M:
        """Change fields of a record, as `db(model).update` does."""
        return await self._records(model).update(id, changes, **fields)

    async def delete(self, model: type[Model] | str, id: str) -> None:
        """Remove a record, as `db(model).delete` does."""
        await self._records(model).delete(id)

    @overload
    def _records(self, model: type[M]) -> Records[M]: ...
    @overload
    def _records(self, model: type[Model] | str) -> Records[Any]: ...
    def _records(self, model: type[Model] | str) -> Records[Any]:
        if self._access.runtime.store(model).adapter is not self._adapter:
            name = model if isinstance(model, str) else model.__name__
            raise DeclarationError(
                f"{name} is in another database than this batch, and two databases share no transaction;"
                " a saga undoes what was done (maniflex.ext.saga.Saga)"
            )
        return self._access.db(model)


def tx_to_lock_in(store: Store, usual: Adapter, whose: str) -> Tx:
    """The open transaction on the database of these records; the refusal has the line that opens it."""
    on = "" if store.adapter is usual else f"on={store.meta.name}"
    return require_tx(store.adapter, "lock_for_update", f"async with {whose}.transaction({on}):")


class RequestDatabase(Protocol):
    """The database of a request, as `Unscoped` goes around its conditions."""

    runtime: Runtime

    @property
    def adapter(self) -> Adapter: ...
    def transaction(
        self,
        isolation: Isolation | str | None = None,
        *,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AbstractAsyncContextManager[Tx]: ...


class Unscoped(DatabaseAccess):
    """The database of a request without its forced conditions; an open transaction is joined."""

    def __init__(self, request: RequestDatabase) -> None:
        self.runtime = request.runtime
        self._request = request

    @property
    def adapter(self) -> Adapter:
        return self._request.adapter

    def transaction(
        self,
        isolation: Isolation | str | None = None,
        *,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction, or join the open one, as `ctx.transaction` does."""
        return self._request.transaction(isolation, on=on, read_only=read_only)


def with_transaction(isolation: Isolation | str | None = None) -> Callable[[Context, Next], Awaitable[None]]:
    """Middleware: everything after it shares one transaction, committed only if the request succeeds.

    Register it on the service step. An open transaction is joined, so registering it twice is fine.
    """
    level = None if isolation is None else _level(isolation)

    async def transactional(ctx: Context, next: Next) -> None:
        async with ctx.transaction(isolation=level):
            await next()

    transactional.opens_transaction = True  # type: ignore[attr-defined]  # for entries that must stand before
    return transactional


def _level(isolation: Isolation | str) -> Isolation:
    name = str(isolation).lower().replace("_", " ")
    levels = [level.value for level in Isolation]
    if name not in levels:
        hint = did_you_mean(name, levels) or f"; there are: {', '.join(levels)}"
        raise DeclarationError(f"with_transaction: there is no isolation level {isolation!r}{hint}")
    return Isolation(name)
