"""Rows of a model that has a backend: the store that asks it, and checks whatever it answers.

Rows have the form they have in every `Store`. A row of the wrong types and a list with a row that it was
not asked for end in `BackendError`, which names model and field in the log alone. A record is read under
the conditions before it is changed or deleted.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NoReturn, get_origin, get_type_hints

import sqlalchemy as sa
from pydantic import TypeAdapter

from maniflex._clock import Clock
from maniflex._fence import Fence
from maniflex._json import encode_json
from maniflex._names import did_you_mean
from maniflex.config import Limits
from maniflex.db.backend import (
    OPTIONAL_METHODS,
    REQUIRED_METHODS,
    WRITE_METHODS,
    BackendAnyOf,
    BackendCondition,
    BackendPage,
    BackendQuery,
    BackendSort,
    Values,
    counts_records,
    has_method,
    operators_of,
    plain_value,
)
from maniflex.db.budget import Budget, rows_size
from maniflex.db.current import is_trial, judge_outcome, transaction
from maniflex.db.port import STREAM_BATCH, Adapter, BatchStatement, CommitHooks, Isolation, Row, Tx, Wake
from maniflex.db.references import StoresByModel
from maniflex.db.store import NO_CHANGES, Store
from maniflex.db.write_seam import ChangeKind, Guard
from maniflex.errors import (
    BackendError,
    DeclarationError,
    InvalidQuery,
    NotFound,
    RequestError,
    Unavailable,
    UnusableQuery,
    UnusableScope,
)
from maniflex.model.base import Model
from maniflex.model.checks import TABLE_EXTRAS, TABLE_FLAGS, TABLE_OPTIONS
from maniflex.model.class_body import OWN_FIELDS
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.model.texts import TEXT, has_edits, merge_edits
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Filter, Hiding, Models, Query, Sort
from maniflex.sql.listing import Listing, Listings
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.where import Scope

log = logging.getLogger("maniflex.backend")
Condition = BackendCondition | BackendAnyOf
_EXACT = frozenset({Op.EQ, Op.NEQ, Op.IN, Op.NOT_IN, Op.IS_NULL, Op.NOT_NULL})
_ORDERED = frozenset({Kind.INT, Kind.FLOAT, Kind.DECIMAL, Kind.BOOL, Kind.DATETIME, Kind.DATE, Kind.TIME})


class BackedStore(Store):
    """Reads and writes the records of one model by its backend."""

    has_transactions = False

    def __init__(self, meta: ModelMeta, clock: Clock) -> None:
        self._backend = meta.options.backend
        self._backend_name = type(self._backend).__name__
        super().__init__(meta, BackendAdapter(meta.name, self._backend_name), sa.MetaData(), clock)
        self.decode = None
        self.counts = counts_records(self._backend)
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
        conditions = self._conditions_to_check(scope)
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

    async def lock(
        self, record_id: str, *, tx: Tx, scope: Scope = (), changes: Mapping[str, Any] = NO_CHANGES
    ) -> Row:
        """The row; a backend locks nothing."""
        return await self.read(record_id, scope=scope)

    async def lock_unchanged(
        self, record_id: str, *, tx: Tx, scope: Scope = (), changes: Mapping[str, Any] = NO_CHANGES
    ) -> Row:
        return await self.read(record_id, scope=scope)

    async def lock_as_read(self, record_id: str, *, tx: Tx, scope: Scope = ()) -> Row:
        raise DeclarationError(f"{self.meta.name} is kept by {self._backend_name}, which locks no records")

    async def page(
        self, listing: Listing, *, counted: bool = True, budget: Budget | None = None, tx: Tx | None = None
    ) -> tuple[Sequence[Row], int]:
        """The rows of one page, and how many there are; without a count, as many as are known of."""
        query, limit = listing.query, listing.query.limit
        self._check_query_of_code(query)
        asked_query = BackendQuery(
            conditions=(*self._conditions_to_ask(query.forced), *self._conditions(query.filters)),
            sorts=tuple(map(_backend_sort, query.sorts)),
            limit=limit,
            offset=(query.page - 1) * (limit or 0),
        )
        rows, page = await self._list(asked_query, query.forced)
        if budget is not None:
            budget.spend(rows_size(rows))
        rows_so_far = asked_query.offset + len(rows) if rows else 0
        if page.total is not None or (counted and self.counts):
            known_total = max(
                rows_so_far, await self._total(page, asked_query)
            )  # records may have gone since they were listed
        else:
            known_total = rows_so_far + _has_more(page, len(rows), limit)
        if listing.fields is not self.meta.fields:
            places = [self.meta.fields.index(field) for field in listing.fields]
            rows = [[row[place] for place in places] for row in rows]
        return rows, known_total

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
        conditions = (*self._conditions_to_ask(scope), BackendCondition(key, "in", tuple(keys)))
        rows, _ = await self._list(BackendQuery(conditions=conditions, limit=most), scope)
        if budget is not None:
            budget.spend(rows_size(rows))
        place = self.sql.names.index(key)
        return [[*row, row[place]] for row in rows]

    async def count(
        self,
        filters: Sequence[Filter],
        *,
        scope: Scope = (),
        search: str | None = None,
        most: int | None = None,
        tx: Tx | None = None,
    ) -> int:
        self._check_query_of_code(Query(self.meta, self.models, filters=tuple(filters)))
        conditions = (*self._conditions_to_ask(scope), *self._conditions(filters))
        asked_query = BackendQuery(conditions=conditions, limit=1)
        if has_method(self._backend, "count") and most != 1:
            total = await self._total(BackendPage(()), asked_query)
        else:
            rows, page = await self._list(asked_query, scope)
            if most == 1:
                return len(rows)
            if page.total is None and not self.counts:
                self._refuse("counts no records")
            total = await self._total(page, asked_query)
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

    async def create(
        self, record: Model, *, scope: Scope = (), tx: Tx | None = None, guard: Guard | None = None
    ) -> Row:
        if guard is not None:
            self._refuse("shares no transaction with other writes")
        conditions = self._conditions_to_check(scope, writes=True)
        now = self.clock.now()
        stamps = {name: now for name in ("created_at", "updated_at") if name in self.meta.by_name}
        values = {**{name: record.__dict__[name] for name in self.sql.names if name not in stamps}, **stamps}
        if self.references is not None:
            await self.references.to_check(values, scope)
        plain_values = self._plain(values)
        if is_trial():
            return self._in_order(self._row(plain_values, "create"))
        row = self._row(await self._call("create", plain_values), "create")
        self._require_inside(conditions, row, "create")
        return await self._tell(ChangeKind.CREATE, row["id"], after=self._in_order(row))

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
        conditions = self._conditions_to_check(scope, writes=True)
        if held is None:
            held = await self.read(record_id, scope=scope)
            self._require_unlocked(held)
        if self.references is not None:
            await self.references.to_check(changes, scope)
        stamps = {"updated_at": self.clock.now()} if "updated_at" in self.meta.by_name else {}
        plain_changes = self._plain({**changes, **stamps})
        outcome = self._outcome(held, plain_changes)
        await judge_outcome(self.meta, record_id, outcome)
        if is_trial():
            return outcome
        values = await self._call("update", record_id, plain_changes)
        if values is None:
            values = await self._call("read", record_id)
        if values is None:
            raise self._missing(record_id)
        row = self._row(values, "update")
        if row["id"] != record_id:
            self._fail("update", f"it was to change {record_id!r} and gave another record")
        self._require_inside(conditions, row, "update")
        return await self._tell(ChangeKind.UPDATE, record_id, before=held, after=self._in_order(row))

    async def revise(
        self,
        record_id: str,
        changes: dict[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        check: Callable[[Row], Awaitable[None] | None] | None = None,
    ) -> Row:
        row = await self.read(record_id, scope=scope)
        self._require_unlocked(row)
        if has_edits(changes):
            merge_edits(self.meta, self.sql.names, row, changes)
        if check is not None and (work := check(row)) is not None:
            await work
        values = self._merge(row, changes)
        return await self.update(record_id, values, scope=scope, held=row) if values else row

    async def increment(
        self, record_id: str, deltas: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row:
        self._refuse("increments no fields; read the record and update it")

    async def delete(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> None:
        row = await self.read(record_id, scope=scope)
        self._require_unlocked(row)
        if is_trial():
            return
        await self._call("delete", record_id)
        await self._tell(ChangeKind.DELETE, record_id, before=row)

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

    async def _tell(
        self, kind: ChangeKind, record_id: str, *, before: Row | None = None, after: Row = ()
    ) -> Row:
        """Tell the listeners of a write, which is done already: their transaction is an empty one."""
        if self.seam.listeners:
            async with transaction(self.adapter) as tx:
                await self.seam.tell(kind, tx, record_id, before=before, after=after or None)
        return after

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
        for item in query.filters:
            problem = self._problem_of(item)
            if problem:
                raise InvalidQuery(f"filter: {problem}")

    def _check_query_of_code(self, query: Query) -> None:
        """Refuse what code made of a query; a client's own was checked when it was read."""
        try:
            self.check_query(query)
        except InvalidQuery as error:
            raise UnusableQuery(f"{self.meta.name}: {error}") from None

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

    def _conditions_to_ask(self, scope: Scope) -> tuple[Condition, ...]:
        """What of the scope is about this model; `UnusableScope` where the backend cannot be asked it."""
        for rule in scope:
            item = rule.on(self.meta)
            problem = "" if item is None else self._problem_of(item)
            if problem:
                raise UnusableScope(f"{self.meta.name} cannot be bound: {problem}")
        return self._conditions_to_check(scope)

    def _conditions_to_check(self, scope: Scope, *, writes: bool = False) -> tuple[Condition, ...]:
        """What of the scope is about this model, to be held against a row: any operator will do."""
        rules = [rule for rule in scope if not (writes and rule.of_shown)]
        filters = [item for rule in rules if (item := rule.on(self.meta)) is not None]
        for item in filters:
            leaves = item.conditions if isinstance(item, AnyOf) else (item,)
            if any(leaf.path for leaf in leaves):
                raise UnusableScope(f"{self.meta.name} cannot be bound by another record")
        return tuple(self._conditions(filters))

    # -- what is answered

    async def _list(self, query: BackendQuery, scope: Scope) -> tuple[list[Row], BackendPage]:
        """The rows, each checked, and the page they came in."""
        answer = await self._call("list", query)
        page = answer if isinstance(answer, BackendPage) else BackendPage(answer)
        rows: Any = page.rows
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
            self._fail("list", f"it gave a {type(rows).__name__} instead of rows")
        if query.limit is not None and len(rows) > query.limit:
            self._fail("list", f"it was asked for {query.limit} rows and gave {len(rows)}")
        conditions = [*self._conditions_to_check(scope), *filter(self._is_clear, query.conditions)]
        checked_rows = [self._row(values, "list") for values in rows]
        ids: set[str] = set()
        for row in checked_rows:
            self._require_inside(conditions, row, "list")
            if row["id"] in ids:
                self._fail("list", f"it gave the record {row['id']!r} twice")
            ids.add(row["id"])
        return [self._in_order(row) for row in checked_rows], page

    def _is_clear(self, condition: Condition) -> bool:
        """Whether every backend must understand a condition alike: each has its own order of texts."""
        leaves = condition.conditions if isinstance(condition, BackendAnyOf) else (condition,)
        return all(leaf.op in _EXACT or self.meta.by_name[leaf.field].kind in _ORDERED for leaf in leaves)

    async def _total(self, page: BackendPage, query: BackendQuery) -> int:
        """How many records there are, as the page or `count` says."""
        total: Any = page.total
        if total is None and has_method(self._backend, "count"):
            total = await self._call("count", replace(query, limit=None, offset=0))
            if type(total) is not int or total < 0:
                self._fail("count", f"it gave {total!r} instead of a number of records")
        if type(total) is not int or total < 0:
            self._fail(
                "list",
                "it must give a BackendPage with a total, because there is no count;"
                " with counts = False lists have none",
            )
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
                row[field.name] = _normalize(field, self._types[field.name].validate_python(value))
            except (ValueError, TypeError, OverflowError, RecursionError):
                self._fail(method, f"it gave a {type(value).__name__} that is no {field.kind}", field)
        return row

    def _in_order(self, row: Mapping[str, Any]) -> Row:
        return [_stored_form(field, row[field.name]) for field in self.meta.fields]

    def _outcome(self, row: Row, changes: Values) -> Row:
        """The row as it becomes by these changes."""
        return [
            _stored_form(field, changes[field.name]) if field.name in changes else value
            for field, value in zip(self.meta.fields, row, strict=True)
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
        fence = Fence()
        try:
            return await call(*arguments)
        except RequestError:
            raise
        except (OSError, TimeoutError) as error:
            log.warning(
                "%s.%s of %s failed: %s", self._backend_name, method, self.meta.name, type(error).__name__
            )
            raise Unavailable() from error
        except BaseException as error:
            failure = fence.absorb(error)
            raise BackendError(self._sentence(method, f"it raised {type(error).__name__}")) from failure

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
    if TEXT in item.field.extra:
        raise InvalidQuery(f"filter: {item.field.api!r} has translations, which this service cannot compare")
    value = item.value.name if isinstance(item.value, FieldMeta) else plain_value(item.value)
    return BackendCondition(item.field.name, str(item.op), value)


def _backend_sort(sort: Sort) -> BackendSort:
    if TEXT in sort.field.extra:
        raise InvalidQuery(f"sort: {sort.field.api!r} has translations, which this service cannot compare")
    return BackendSort(sort.field.name, sort.descending)


def _type_of(field: FieldMeta) -> TypeAdapter[Any]:
    return TypeAdapter(field.type)


def _normalize(field: FieldMeta, value: Any) -> Any:
    """A value as databases give it: times in UTC, members as their values; `ValueError` for no such value."""
    if field.kind is Kind.JSON:
        encode_json(value).encode()
        return value
    value = plain_value(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("not a finite number")
    if isinstance(value, str):
        value.encode()  # half of a pair of surrogates can be sent to nobody
        return value.lower() if field.ignore_case else value
    return value


def _stored_form(field: FieldMeta, value: Any) -> Any:
    """A value as it stands in a row: JSON is text there."""
    return encode_json(value) if field.kind is Kind.JSON and value is not None else value


def _has_more(page: BackendPage, row_count: int, limit: int | None) -> bool:
    """Whether there are rows behind those of a page; one that is full may have some."""
    return page.more is True if page.more is not None else row_count == limit


# Stands where a database would: what a model with a backend has instead of one.
#
# There is no SQL to run. Its transaction is an empty one: nothing of a backend is rolled back, and the
# calls for after the commit run when the block ends without an error.


class _NoSql:
    read_versions = None
    dialect = Dialect.SQLITE  # nothing is ever written in it

    def __init__(self, model: str, backend: str) -> None:
        self._model, self._backend = model, backend

    def _refuse(self) -> NoReturn:
        raise DeclarationError(f"{self._model} is kept by {self._backend}, which runs no SQL")

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        self._refuse()

    async def fetch_one(self, sql: Sql) -> Row | None:
        self._refuse()

    async def fetch_named(self, sql: Sql) -> list[dict[str, Any]]:
        self._refuse()

    async def write(self, sql: Sql) -> list[Row]:
        self._refuse()

    async def execute(self, sql: Sql) -> int:
        self._refuse()

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        self._refuse()


class _EmptyTx(_NoSql, CommitHooks):
    def __init__(self, model: str, backend: str) -> None:
        _NoSql.__init__(self, model, backend)
        CommitHooks.__init__(self)

    def doom(self) -> None:
        """There is nothing that could be committed."""


class BackendAdapter(_NoSql):
    """The place of one model that has a backend; each has its own."""

    @property
    def label(self) -> str:
        return f"{self._backend} of {self._model}"

    async def open(self, *, read_only: bool = False) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    @asynccontextmanager
    async def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AsyncIterator[Tx]:
        tx = _EmptyTx(self._model, self._backend)
        yield tx
        await tx.run_after_commit()

    def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        self._refuse()

    def sibling(self, *, steady: bool = False, patient: bool = False) -> Adapter:
        return self

    def listen(self, channel: str, wake: Wake) -> AbstractAsyncContextManager[None]:
        self._refuse()


# What is wrong with a model that has a backend: options that need SQL, and methods that are not there.
#
# Beside it, what a rule about records of a model asks for that its backend does not take.


_OPTIONS = (
    "query",
    "database",
    *TABLE_OPTIONS,
    "export",
    "max_export_rows",
    "aggregate",
    "cursor_field",
    "search_language",
    "global_searchable",
)
_FLAGS = (*TABLE_FLAGS, "unique_within", "lock_scope", "renamed_from")
_METHODS = (*REQUIRED_METHODS, *OPTIONAL_METHODS)
_ARGUMENTS = {"list": 1, "read": 1, "create": 1, "update": 2, "delete": 1, "count": 1}


def backend_problems(meta: ModelMeta) -> Iterator[str]:
    """The mistakes of one model and of its backend, one sentence each."""
    backend = meta.options.backend
    for text in (*_method_problems(backend), *_total_problems(backend), *_attribute_problems(backend)):
        yield f"{meta.name}: backend: {text}"
    for option in _OPTIONS:
        if getattr(meta.options, option):
            yield f"{meta.name}: {option} cannot be set on a model with a backend; it needs SQL"
    if meta.soft_delete is not None:
        yield f"{meta.name}: soft_delete cannot be set on a model with a backend; let its delete mark records"
    for operation in _operations(meta.options.operations):
        if operation in WRITE_METHODS and not has_method(backend, operation):
            yield f"{meta.name}: operations: {type(backend).__name__} has no {operation}"
    for field in meta.fields:
        if field.name not in OWN_FIELDS:
            yield from _field_problems(meta, field)


def _operations(operations: Any) -> Iterable[str]:
    return () if operations is None or isinstance(operations, str) else map(str, operations)


def _method_problems(backend: Any) -> Iterator[str]:
    if isinstance(backend, type):
        yield f"give an instance, not the class {backend.__name__}"
        return
    name = type(backend).__name__
    for method in REQUIRED_METHODS:
        if not callable(getattr(backend, method, None)):
            yield f"{name} has no {method}{did_you_mean(method, _unknown_methods(backend))}"
    for method in _METHODS:
        call = getattr(backend, method, None)
        if call is None or (method in REQUIRED_METHODS and not callable(call)):
            continue
        if not inspect.iscoroutinefunction(call):
            yield f"{name}.{method} must be written with async def"
        elif not _takes(call, _ARGUMENTS[method]):
            count = _ARGUMENTS[method]
            yield f"{name}.{method} must take {count} argument{'s' if count > 1 else ''}"
    for unknown in _unknown_methods(backend):
        missing = [method for method in OPTIONAL_METHODS if not has_method(backend, method)]
        if hint := did_you_mean(unknown, missing):
            yield f"{name}.{unknown} is no method of a backend{hint}"


def _unknown_methods(backend: Any) -> list[str]:
    names = [name for name in dir(type(backend)) if not name.startswith("_")]
    return [name for name in names if name not in _METHODS and callable(getattr(backend, name, None))]


def _takes(call: Any, count: int) -> bool:
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _total_problems(backend: Any) -> Iterator[str]:
    """Says that nothing tells how many records there are, where the type of `list` shows it already."""
    call = getattr(backend, "list", None)
    if has_method(backend, "count") or not counts_records(backend) or not inspect.iscoroutinefunction(call):
        return
    try:
        answer = get_type_hints(call).get("return")
    except Exception:  # a name that is not there; the first list will tell
        return
    answer = get_origin(answer) or answer
    if isinstance(answer, type) and issubclass(answer, Sequence):
        name = type(backend).__name__
        yield (
            f"{name} has no count, and {name}.list gives no BackendPage with a total;"
            " give one of them, or say that lists have no total: counts = False"
        )


def _attribute_problems(backend: Any) -> Iterator[str]:
    name, operators = type(backend).__name__, getattr(backend, "operators", ())
    if isinstance(operators, str) or not isinstance(operators, Iterable):
        yield f"{name}.operators must be a set of operators"
        return
    names = [op.value for op in Op]
    for op in operators:
        if str(op) not in names:
            yield f"{name}.operators: there is no operator {op!r}{did_you_mean(str(op), names)}"
    for flag in ("sorts", "any_of", "counts"):
        if not isinstance(getattr(backend, flag, False), bool):
            yield f"{name}.{flag} must be True or False"


def _field_problems(meta: ModelMeta, field: FieldMeta) -> Iterator[str]:
    wrong = [flag for flag in _FLAGS if getattr(field, flag)]
    wrong += [name for name in TABLE_EXTRAS if name in field.extra]
    wrong += ["column"] * (field.column != field.name)
    for option in wrong:
        yield f"{meta.name}.{field.name}: {option} cannot be set on a model with a backend; it needs SQL"
    if field.sortable and not getattr(meta.options.backend, "sorts", True):
        yield f"{meta.name}.{field.name}: sortable, but {type(meta.options.backend).__name__} does not sort"


def why_apart(meta: ModelMeta, other: ModelMeta) -> str:
    """Says why no statement and no transaction reaches the records of both models; empty where one does."""
    for one in (meta, other):
        if one.options.backend is not None:
            return f"{one.name} has a backend"
    is_apart = other.options.database != meta.options.database
    return f"{other.name} lives in another database than {meta.name}" if is_apart else ""


def operator_problems(meta: ModelMeta, *operators: str) -> Iterator[str]:
    """Says which of these operators the backend of a model does not take, if it has a backend."""
    backend = meta.options.backend
    if backend is None:
        return
    supported_operators = operators_of(backend)
    for op in dict.fromkeys(operators):
        if op not in supported_operators:
            name, texts = type(backend).__name__, ", ".join(sorted(supported_operators)) or "no operators"
            yield f"{meta.name} is kept by {name}, which does not take {op}; it takes {texts}"


def backed_relation_problems(meta: ModelMeta, models: Models) -> Iterator[str]:
    """Relations that would have to be joined in SQL, or that a backend cannot be asked for."""
    for relation in meta.relations.values():
        target, junction = models.get(relation.target), models.get(relation.through or "")
        sides = [m for m in (meta, target, junction) if m is not None and m.options.backend is not None]
        if not sides:
            continue
        where = f"{meta.name}.{relation.name}"
        if relation.kind is RelationKind.MANY_TO_MANY:
            yield f"{where}: many_to_many cannot reach {sides[0].name}, which has a backend; it needs SQL"
        elif target in sides and "in" not in operators_of(target.options.backend):
            name = type(target.options.backend).__name__
            yield f"{where}: records of {target.name} are read along by `in`, which {name} does not take"
