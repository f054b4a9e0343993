"""Typed access to the records of one model, for code: what `ctx.db(Post)` and `server.db(Post)` give.

The same rules bind records made here as those a client sends; an open transaction is joined. In a
request its forced conditions and scope rules bind every method: a record outside them is not there.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from maniflex._names import did_you_mean
from maniflex.db.includes import attach, load
from maniflex.db.many import create_rows, details_of, secrets_of
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.db.write_seam import check, complete
from maniflex.errors import DeclarationError, Detail, UnusableQuery, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.history_row import is_history
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.model.texts import has_edits
from maniflex.query.query import ClientQuery, Include, Models, Query, Scope, fields_fixed_by, models_reached

M = TypeVar("M", bound=Model)
Conditions = Mapping[str, Any] | Iterable[tuple[str, Any] | tuple[str, str, Any]]
Filters = Conditions | ClientQuery
Sorts = str | Iterable[str | tuple[str, str]]
Names = str | Iterable[str]


class Bound(Protocol):
    """What binds the records: a request, whose conditions may still grow."""

    @property
    def forced(self) -> Scope: ...
    @property
    def rules(self) -> object | None: ...
    async def scope_of(self, model: ModelMeta, operation: str, reached: Iterable[str] = ()) -> Scope: ...
    async def scope_with(self, scope: Scope, reached: Iterable[str]) -> Scope: ...


class Records(Generic[M]):
    """The records of one model, all of them or those inside the scope of a request."""

    def __init__(self, store: Store, tx: Tx | None = None, bound: Bound | None = None) -> None:
        self._store = store
        self._tx = tx
        self._bound = bound

    async def read(self, id: str, *, include: Names | None = None) -> M:
        """The record of that id; `NotFound` when there is none or it is deleted."""
        includes = self._includes(include)
        scope = await self._scope("read", None, includes)
        row = await self._store.read(id, scope=scope, tx=self._tx)
        [record] = await self._records([row], includes, scope)
        return record

    async def list(
        self,
        filters: Filters | None = None,
        sorts: Sorts | None = None,
        limit: int | None = None,
        page: int = 1,
        include: Names | None = None,
    ) -> list[M]:
        """The matching records: all of them, or one page of `limit`; with the relations to `include`."""
        query, includes = self._query(filters, sorts), self._includes(include)
        scope = await self._scope("list", query, includes)
        query = query.with_(limit=limit, page=page, forced=scope)
        rows, _ = await self._store.page(self._store.listing(query), counted=False, tx=self._tx)
        return [*await self._records(rows, includes, scope)]

    async def count(self, filters: Filters | None = None) -> int:
        """How many records match."""
        query = self._query(filters)
        return await self._store.count(query.filters, scope=await self._scope("list", query), tx=self._tx)

    async def exists(self, filters: str | Filters | None = None, **fields: Any) -> bool:
        """Whether any record matches; a bare text is an id, keywords are fields and their values."""
        query = self._query({"id": filters} if isinstance(filters, str) else filters)
        for name, value in fields.items():
            query = query.with_filter(name, value)
        operation = "read" if isinstance(filters, str) else "list"
        scope = await self._scope(operation, query)
        return await self._store.count(query.filters, scope=scope, most=1, tx=self._tx) > 0

    async def create(self, record: M | Mapping[str, Any] | None = None, /, **fields: Any) -> M:
        """Store a new record, given whole or by its fields; what the scope settles need not be given."""
        self._check_writable()
        if isinstance(record, Model) and fields:
            raise DeclarationError("create() takes a record or fields, not both")
        new = record if isinstance(record, Model) else {**(record or {}), **fields}
        scope: Scope = ()
        if self._bound is not None:
            scope = await self._scope_to_write("create", _values_of(new))
        return self._record(await self._store.create(self._new_record(new, scope), scope=scope, tx=self._tx))

    async def create_many(self, records: Iterable[M | Mapping[str, Any]]) -> builtins.list[M]:
        """Store new records, each given whole or by its fields: all of them or none, 500 in a statement.

        A refusal names the record by its place in front of the field: `[3].email`.
        """
        self._check_writable()
        items = list(records)
        if not items:
            return []
        scope: Scope = ()
        if self._bound is not None:
            keys = _keys_of(self._store.meta)
            all_values = [_values_of(item) for item in items]
            sample = {key: one[key] for one in all_values for key in keys if one.get(key) is not None}
            scope = await self._scope_to_write("create", sample)
        new_records: list[Model] = []
        problems: list[Detail] = []
        secrets: list[str] = []
        for place, item in enumerate(items):
            try:
                new_records.append(self._new_record(item, scope))
            except ValidationFailed as error:
                problems += details_of(error, f"[{place}]")
                secrets += secrets_of(error, f"[{place}]")
        if problems:
            raise ValidationFailed(details=problems, model=self._store.meta.name, secrets=secrets)
        rows = await create_rows(self._store, new_records, scope, self._tx)
        return [self._record(row) for row in rows]

    def _new_record(self, given: Model | Mapping[str, Any], scope: Scope) -> Model:
        """A validated record, inside the scope; what that settles need not be given."""
        meta = self._store.meta
        if isinstance(given, Model):
            new_record = meta.validator.record(given)
        else:
            values = dict(given)
            if scope:
                complete(meta, scope, values)
            new_record = meta.validator.create_from_code(values)
        if scope:
            complete(meta, scope, new_record.__dict__)
            check(meta, scope, new_record.__dict__)
        return new_record

    async def update(self, id: str, changes: M | Mapping[str, Any] | None = None, /, **fields: Any) -> M:
        """Change fields of a record, given by name or as a record that has them; give it back as stored."""
        self._check_writable()
        validator = self._store.meta.validator
        values = self._values(id, changes) if isinstance(changes, Model) else changes or {}
        valid = validator.patch_from_code({**values, **fields})
        scope = await self._scope_to_write("update", valid)
        if scope:
            check(self._store.meta, scope, valid, only_present=True)
        is_apart = validator.has_model_validators or has_edits(valid)
        write = self._store.revise if is_apart else self._store.update
        return self._record(await write(id, valid, scope=scope, tx=self._tx))

    def _values(self, id: str, record: Model) -> dict[str, Any]:
        """What a record says of the one to change: all its fields but those that the framework assigns."""
        meta = self._store.meta
        if not isinstance(record, meta.cls):
            raise TypeError(f"expected a {meta.name}, not a {type(record).__name__}")
        values = vars(record)
        if values.get("id", id) != id:
            raise DeclarationError(f"the record to change is {id!r}, and the one given is {values['id']!r}")
        marker = () if meta.soft_delete is None else (meta.soft_delete.field,)
        assigned = ("id", "created_at", "updated_at", *marker)
        return {name: values[name] for name in meta.by_name if name in values and name not in assigned}

    async def delete(self, id: str) -> None:
        """Remove the record, softly where the model says so."""
        self._check_writable()
        await self._store.delete(id, scope=await self._scope("delete"), tx=self._tx)

    async def restore(self, id: str) -> M:
        """Bring a softly deleted record back; `NotFound` when there is none."""
        self._check_writable()
        return self._record(await self._store.restore(id, scope=await self._scope("update"), tx=self._tx))

    async def increment(self, id: str, **deltas: Any) -> M:
        """Add to numeric fields; concurrent additions all land and declared bounds hold."""
        self._check_writable()
        scope = await self._scope("update")
        return self._record(await self._store.increment(id, deltas, scope=scope, tx=self._tx))

    async def _scope(
        self, operation: str, query: Query | None = None, includes: tuple[Include, ...] = ()
    ) -> Scope:
        """The conditions on the records, and on those of other models that the query leads to."""
        bound = self._bound
        if bound is None:
            return ()
        if bound.rules is None and not is_history(self._store.meta):
            return bound.forced
        query = query or Query(self._store.meta, self._store.models)
        return await bound.scope_of(self._store.meta, operation, models_reached(query, includes))

    async def _scope_to_write(self, operation: str, values: Mapping[str, Any]) -> Scope:
        """The conditions on the records, and on those that the keys among these values name."""
        scope, bound = await self._scope(operation), self._bound
        if bound is None or bound.rules is None:
            return scope
        meta = self._store.meta
        fixed_fields = fields_fixed_by(meta, scope)
        targets = [
            relation.target
            for relation in meta.relations.values()
            if relation.kind is RelationKind.BELONGS_TO
            and relation.key not in fixed_fields
            and values.get(relation.key or "") is not None
        ]
        return await bound.scope_with(scope, targets)

    def _check_writable(self) -> None:
        if self._store.sql.readonly:
            raise DeclarationError(f"{self._store.meta.name} is read-only: its records are made by a query")
        if getattr(self._store.meta.cls, "__append_only__", False):
            raise DeclarationError(f"{self._store.meta.name} is read-only: its rows tell what has happened")

    def _includes(self, include: Names | None) -> tuple[Include, ...]:
        names = [include] if isinstance(include, str) else [*(include or ())]
        return _includes(self._store.meta, self._store.models, names) if names else ()

    async def _records(self, rows: Sequence[Row], includes: tuple[Include, ...], scope: Scope) -> Sequence[M]:
        if not includes:
            return [self._record(row) for row in rows]
        store = self._store
        entries = await load(store, rows, store.meta.fields, includes, scope, tx=self._tx)
        return [cast(M, attach(self._record(row), of_row)) for row, of_row in zip(rows, entries, strict=True)]

    def _record(self, row: Row) -> M:
        return cast(M, self._store.record(row))

    def _query(self, filters: Filters | None, sorts: Sorts | None = None) -> Query:
        if isinstance(filters, ClientQuery):
            if filters.query.model is not self._store.meta:
                raise DeclarationError(
                    f"the query is about {filters.query.model.name}, and not about {self._store.meta.name}"
                )
            query = filters.query.with_(limit=None)
        else:
            query = Query(self._store.meta, self._store.models)
            for name, op, value in _conditions(filters):
                query = query.with_filter(name, value, op)
        for term in [sorts] if isinstance(sorts, str) else (sorts or ()):
            name, _, direction = term.partition(":") if isinstance(term, str) else (term[0], "", term[1])
            query = query.with_sort(name, direction or "asc")
        return query


def _keys_of(model: ModelMeta) -> list[str]:
    """The attributes of a model that name records of others."""
    relations = model.relations.values()
    return [r.key for r in relations if r.kind is RelationKind.BELONGS_TO and r.key is not None]


def _values_of(given: Model | Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a new record by attribute, as far as they are given."""
    return vars(given) if isinstance(given, Model) else given


def _includes(model: ModelMeta, models: Models, names: Iterable[str]) -> tuple[Include, ...]:
    """The relations of dotted names, each with what goes along with it."""
    names_below: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        names_below.setdefault(first, []).extend([rest] if rest else [])
    includes = []
    for name, below in names_below.items():
        relation = model.relations.get(name)
        if relation is None:
            hint = did_you_mean(name, model.relations)
            raise UnusableQuery(f"{model.name}: include: {name!r} is not a relation{hint}")
        includes.append(Include(relation, _includes(models[relation.target], models, below)))
    return tuple(includes)


def _conditions(filters: Conditions | None) -> Sequence[tuple[str, str, Any]]:
    if filters is None:
        return ()
    pairs = filters.items() if isinstance(filters, Mapping) else filters
    return [f if len(f) == 3 else (f[0], "eq", f[1]) for f in pairs]
