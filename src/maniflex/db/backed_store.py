"""Rows of a model that has a backend: the store that asks it, and checks whatever it answers.

Rows have the form they have in every `Store`. A row of the wrong types and a list with a row outside
the forced conditions end in `BackendError`, which names model and field in the log alone. A record is
read under the conditions before it is changed or deleted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from maniflex._clock import Clock
from maniflex._limits import Limits
from maniflex.db.backend import (
    BackendAnyOf,
    BackendCondition,
    BackendPage,
    BackendQuery,
    BackendSort,
    Values,
    operators_of,
    plain_value,
)
from maniflex.db.backend_adapter import BackendAdapter
from maniflex.db.budget import Budget, rows_size
from maniflex.db.port import Row, Tx
from maniflex.db.references import StoresByModel
from maniflex.db.store import Store
from maniflex.errors import (
    BackendError,
    DeclarationError,
    InvalidQuery,
    NotFound,
    RequestError,
    Unavailable,
    UnusableScope,
)
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.query.hiding import Hiding
from maniflex.query.query import AnyOf, Compare, Filter, Models, Query
from maniflex.sql.codec import encode_json
from maniflex.sql.listing import Listing, Listings
from maniflex.sql.where import Scope

log = logging.getLogger("maniflex.backend")
Condition = BackendCondition | BackendAnyOf


class BackedStore(Store):
    """Reads and writes the records of one model by its backend."""

    def __init__(self, meta: ModelMeta, clock: Clock) -> None:
        self._backend = meta.options.backend
        self._backend_name = type(self._backend).__name__
        super().__init__(meta, BackendAdapter(meta.name, self._backend_name), sa.MetaData(), clock)
        self.decode = None
        self._operators = operators_of(self._backend)
        self._types = {f.name: _type_of(f) for f in meta.fields}
        self.listings = _BackedListings(self)

    def link(
        self, models: Models, stores_by_model: StoresByModel, limits: Limits, *, must_bind: bool = False
    ) -> None:
        super().link(models, stores_by_model, limits, must_bind=must_bind)
        self.listings = _BackedListings(self, models, limits, must_bind=must_bind)

    # -- reading

    async def find(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> Row | None:
        conditions = self._scope_conditions(scope)
        try:
            values = await self._call("read", record_id)
        except NotFound:
            return None
        if values is None:
            return None
        row = self._row(values, "read")
        if row["id"] != record_id:
            self._fail("read", f"it was asked for {record_id!r} and gave another record")
        return self._in_order(row) if _matches(conditions, row) else None

    async def read(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        row = await self.find(record_id, scope=scope)
        if row is None:
            raise self._missing(record_id)
        return row

    async def lock(self, record_id: str, *, tx: Tx, scope: Scope = ()) -> Row:
        """The row; a backend locks nothing."""
        return await self.read(record_id, scope=scope)

    async def lock_unchanged(self, record_id: str, *, tx: Tx, scope: Scope = ()) -> Row:
        return await self.read(record_id, scope=scope)

    async def lock_as_read(self, record_id: str, *, tx: Tx, scope: Scope = ()) -> Row:
        raise DeclarationError(f"{self.meta.name} is kept by {self._backend_name}, which locks no records")

    async def page(
        self, listing: Listing, *, counted: bool = True, budget: Budget | None = None, tx: Tx | None = None
    ) -> tuple[Sequence[Row], int]:
        query = listing.query
        self.check_query(query)
        limit = query.limit
        asked = BackendQuery(
            conditions=(*self._scope_conditions(query.forced), *self._conditions(query.filters)),
            sorts=tuple(BackendSort(sort.field.name, sort.descending) for sort in query.sorts),
            limit=limit,
            offset=(query.page - 1) * (limit or 0),
        )
        rows, total = await self._list(asked, query.forced)
        if budget is not None:
            budget.spend(rows_size(rows))
        if counted and total is None:
            total = await self._count(asked)
        if listing.fields is not self.meta.fields:
            places = [self.meta.fields.index(field) for field in listing.fields]
            rows = [[row[place] for place in places] for row in rows]
        return rows, total or 0

    def stream(
        self, query: Query, fields: tuple[FieldMeta, ...], most: int
    ) -> AsyncGenerator[Sequence[Row], None]:
        raise DeclarationError(f"{self.meta.name} is kept by {self._backend_name}, which streams no rows")

    async def find_related(
        self,
        owner: Store,
        relation: RelationMeta,
        keys: Sequence[str],
        scope: Scope,
        *,
        most: int | None = None,
        budget: Budget | None = None,
        tx: Tx | None = None,
    ) -> Sequence[Row]:
        key = "id" if relation.kind is RelationKind.BELONGS_TO else relation.key or ""
        conditions = (*self._scope_conditions(scope), BackendCondition(key, "in", tuple(keys)))
        rows, _ = await self._list(BackendQuery(conditions=conditions, limit=most), scope)
        if budget is not None:
            budget.spend(rows_size(rows))
        place = self.sql.names.index(key)
        wanted = set(keys)
        return [[*row, row[place]] for row in rows if row[place] in wanted]

    async def count(
        self,
        filters: Sequence[Filter],
        *,
        scope: Scope = (),
        search: str | None = None,
        most: int | None = None,
        tx: Tx | None = None,
    ) -> int:
        self.check_filters(filters)
        conditions = (*self._scope_conditions(scope), *self._conditions(filters))
        if hasattr(self._backend, "count"):
            total = await self._count(BackendQuery(conditions=conditions))
        else:
            _, known = await self._list(BackendQuery(conditions=conditions, limit=1), scope)
            total = self._require_total(known)
        return total if most is None else min(total, most)

    async def search(
        self,
        text: str,
        limit: int,
        *,
        scope: Scope = (),
        budget: Budget | None = None,
        tx: Tx | None = None,
    ) -> Sequence[Row]:
        raise InvalidQuery(f"{self.meta.name} cannot be searched")

    # -- writing

    async def create(self, record: Model, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        conditions = self._scope_conditions(scope, writes=True)
        now = self.clock.now()
        stamps = {name: now for name in ("created_at", "updated_at") if name in self.meta.by_name}
        values = {**{name: record.__dict__[name] for name in self.sql.names if name not in stamps}, **stamps}
        if self.references is not None:
            await self.references.to_check(values, scope)
        row = self._row(await self._call("create", self._plain(values)), "create")
        self._require_inside(conditions, row, "create")
        return self._in_order(row)

    async def provision(self, record: Model) -> Row | None:
        self._refuse("has no singletons")

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        held: Row | None = None,
    ) -> Row:
        conditions = self._scope_conditions(scope, writes=True)
        if held is None:
            self._require_unlocked(await self.read(record_id, scope=scope))
        if self.references is not None:
            await self.references.to_check(changes, scope)
        stamps = {"updated_at": self.clock.now()} if "updated_at" in self.meta.by_name else {}
        values = await self._call("update", record_id, self._plain({**changes, **stamps}))
        if values is None:
            values = await self._call("read", record_id)
        if values is None:
            raise self._missing(record_id)
        row = self._row(values, "update")
        if row["id"] != record_id:
            self._fail("update", f"it was to change {record_id!r} and gave another record")
        self._require_inside(conditions, row, "update")
        return self._in_order(row)

    async def revise(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        check: Callable[[Row], Awaitable[None] | None] | None = None,
    ) -> Row:
        row = await self.read(record_id, scope=scope)
        self._require_unlocked(row)
        if check is not None and (work := check(row)) is not None:
            await work
        changes = self._merge(row, changes)
        return await self.update(record_id, changes, scope=scope, held=row) if changes else row

    async def increment(
        self, record_id: str, deltas: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row:
        self._refuse("increments no fields; read the record and update it")

    async def delete(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> None:
        self._require_unlocked(await self.read(record_id, scope=scope))
        await self._call("delete", record_id)

    async def restore(
        self,
        record_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        check: Callable[[Row], Awaitable[None]] | None = None,
    ) -> Row:
        self._refuse("restores no records")

    def _require_unlocked(self, row: Row) -> None:
        refusal = self.lock_refusal(row)
        if refusal is not None:
            raise refusal

    def _refuse(self, what: str) -> NoReturn:
        raise DeclarationError(f"{self.meta.name} is kept by {self._backend_name}, which {what}")

    # -- what is asked

    def check_query(self, query: Query) -> None:
        """Refuse what the backend does not take; `InvalidQuery` says what it does."""
        if query.search is not None:
            raise InvalidQuery(f"q: {self.meta.name} cannot be searched")
        if query.cursor is not None:
            raise InvalidQuery(f"cursor: {self.meta.name} is paged by page and limit")
        if query.sorts and not getattr(self._backend, "sorts", True):
            raise InvalidQuery(f"sort: {self.meta.name} cannot be sorted")
        for sort in query.sorts:
            if sort.path:
                raise InvalidQuery(f"sort: {self.meta.name} cannot be sorted by another record")
        self.check_filters(query.filters)

    def check_filters(self, filters: Sequence[Filter]) -> None:
        """Refuse conditions that the backend does not take."""
        for item in filters:
            problem = self._problem_of(item)
            if problem:
                raise InvalidQuery(f"filter: {problem}")

    def _problem_of(self, item: Filter) -> str:
        if isinstance(item, AnyOf):
            if not getattr(self._backend, "any_of", False):
                return f"{self.meta.name} takes no group of conditions"
            return next(filter(None, map(self._problem_of, item.conditions)), "")
        if item.path:
            return f"{self.meta.name} cannot be filtered by another record"
        if item.op not in self._operators:
            known = ", ".join(sorted(self._operators)) or "no operators"
            return f"{item.field.api} does not take {item.op}; {self.meta.name} takes {known}"
        return ""

    def _conditions(self, filters: Sequence[Filter]) -> Iterator[Condition]:
        for item in filters:
            if isinstance(item, AnyOf):
                yield BackendAnyOf(tuple(_condition(one) for one in item.conditions))
            else:
                yield _condition(item)

    def _scope_conditions(self, scope: Scope, *, writes: bool = False) -> tuple[Condition, ...]:
        """What of the scope is about this model; `UnusableScope` where the backend cannot be asked it."""
        filters: list[Filter] = []
        for rule in scope:
            item = None if writes and rule.of_shown else rule.on(self.meta)
            if item is None:
                continue
            problem = self._problem_of(item)
            if problem:
                raise UnusableScope(f"{self.meta.name} cannot be bound: {problem}")
            filters.append(item)
        return tuple(self._conditions(filters))

    # -- what is answered

    async def _list(self, query: BackendQuery, scope: Scope) -> tuple[list[Row], int | None]:
        answer = await self._call("list", query)
        page = answer if isinstance(answer, BackendPage) else None
        rows = answer if page is None else page.rows
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
            self._fail("list", f"it gave a {type(rows).__name__} instead of rows")
        if query.limit is not None and len(rows) > query.limit:
            self._fail("list", f"it was asked for {query.limit} rows and gave {len(rows)}")
        conditions = self._scope_conditions(scope)
        checked_rows = [self._row(values, "list") for values in rows]
        for row in checked_rows:
            self._require_inside(conditions, row, "list")
        total = None if page is None else self._require_total(page.total)
        return [self._in_order(row) for row in checked_rows], total

    async def _count(self, query: BackendQuery) -> int:
        if not hasattr(self._backend, "count"):
            return self._require_total(None)
        return self._require_total(await self._call("count", query))

    def _require_total(self, total: Any) -> int:
        if type(total) is not int or total < 0:
            self._fail("list", "neither a BackendPage nor count says how many records there are")
        return total

    def _require_inside(self, conditions: Sequence[Condition], row: Values, method: str) -> None:
        for condition in conditions:
            if not condition.matches(row):
                leaves = condition.conditions if isinstance(condition, BackendAnyOf) else (condition,)
                names = ", ".join(leaf.field for leaf in leaves)
                self._fail(method, f"it gave a record that is outside the condition on {names}")

    def _row(self, values: Any, method: str) -> dict[str, Any]:
        """The values of every field, each of its type."""
        if not isinstance(values, Mapping):
            self._fail(method, f"it gave a {type(values).__name__} instead of a record")
        row: dict[str, Any] = {}
        for field in self.meta.fields:
            value = values.get(field.name)
            if value is None:
                if not field.nullable:
                    self._fail(method, "it gave no value", field)
                row[field.name] = None
                continue
            try:
                row[field.name] = _normalize(self._types[field.name].validate_python(value))
            except ValidationError:
                self._fail(method, f"it gave a {type(value).__name__} that is no {field.kind}", field)
        return row

    def _in_order(self, row: Mapping[str, Any]) -> Row:
        return [
            encode_json(value) if field.kind is Kind.JSON and value is not None else value
            for field, value in zip(self.meta.fields, row.values(), strict=True)
        ]

    def _plain(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: plain_value(value) if not isinstance(value, list) else value
            for name, value in values.items()
        }

    async def _call(self, method: str, *arguments: Any) -> Any:
        call = getattr(self._backend, method, None)
        if call is None:
            self._refuse(f"has no {method}")
        try:
            return await call(*arguments)
        except (RequestError, DeclarationError):
            raise
        except (OSError, TimeoutError) as error:
            log.warning(
                "%s.%s of %s failed: %s", self._backend_name, method, self.meta.name, type(error).__name__
            )
            raise Unavailable() from error
        except Exception as error:
            raise BackendError(self._sentence(method, f"it raised {type(error).__name__}")) from error

    def _fail(self, method: str, what: str, field: FieldMeta | None = None) -> NoReturn:
        raise BackendError(self._sentence(method, what, field))

    def _sentence(self, method: str, what: str, field: FieldMeta | None = None) -> str:
        place = self.meta.name if field is None else f"{self.meta.name}.{field.name}"
        return f"{place}: {self._backend_name}.{method}: {what}"


class _BackedListings(Listings):
    """Query strings of a model with a backend; what it does not take is refused when they are read."""

    def __init__(self, store: BackedStore, *arguments: Any, **options: Any) -> None:
        super().__init__(store.sql, *arguments, **options)
        self._store = store

    def parse(self, query_string: bytes, hiding: Hiding) -> Query:
        query = super().parse(query_string, hiding)
        self._store.check_query(query)
        return query


def _matches(conditions: Sequence[Condition], row: Values) -> bool:
    return all(condition.matches(row) for condition in conditions)


def _condition(item: Compare) -> BackendCondition:
    value = item.value.name if isinstance(item.value, FieldMeta) else plain_value(item.value)
    return BackendCondition(item.field.name, str(item.op), value)


def _type_of(field: FieldMeta) -> TypeAdapter[Any]:
    return TypeAdapter(field.type)


def _normalize(value: Any) -> Any:
    """A value as databases give it: times in UTC, members as their values."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value if isinstance(value, list | tuple) else plain_value(value)
