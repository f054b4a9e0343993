"""The policies of a sealed server, and the judges that they and the scopes give for rows in hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from maniflex.db.current import executor
from maniflex.db.past_rows import past_record
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import Forbidden, InvalidQuery, NotFound, OutOfScope, UnusableScope
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.texts import compared_value, stored_field
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Piece, Trait
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import At, ask
from maniflex.pipeline.rules.scopes import ALL, LAST, BindingRule, ask_once
from maniflex.query.conditions import ConditionReader, condition_parts
from maniflex.query.operators import Takes, operator
from maniflex.query.query import (
    Compare,
    Forced,
    Models,
    Narrowed,
    Query,
    Scope,
    holds,
    leaves,
    reachable_models,
)
from maniflex.sql import select

if TYPE_CHECKING:
    from maniflex.pipeline.entry import Placement, Seat
    from maniflex.pipeline.registration import Middleware, Next, Pipeline, Registration


UNCOUNTED_META: dict[str, Any] = {
    "type": "object",
    "description": "Where in the list this page is; a page may have fewer records than its limit.",
    "required": ["page", "limit", "has_more"],
    "properties": {
        "page": {"type": "integer", "minimum": 1},
        "limit": {"type": "integer", "minimum": 1},
        "has_more": {"type": "boolean"},
    },
}
_MANY = frozenset({Operation.LIST, Operation.EXPORT})


class PolicyEntry(Entry):
    """A policy on the rows of its models; it is no middleware, the steps that touch rows ask it."""

    homes: ClassVar = {"db": ANYWHERE}
    traits = Trait.VARIES_BY_CALLER

    def __init__(self, policy: Policy, where: Where | None) -> None:
        super().__init__()
        self.policy = policy
        self.where = where
        self._rules: dict[ModelMeta, WhereRule] = {}

    def policed_models(self, seat: Seat) -> Iterator[ModelMeta]:
        """The models of a registration; without names all but the tables of the framework."""
        return (meta for meta in seat.models if seat.is_named or not meta.is_internal)

    def problems(self, seat: Seat) -> Iterable[str]:
        models = list(self.policed_models(seat))
        if not models:
            yield "there is no model whose rows it could judge"
        for meta in models:
            if meta.is_internal:
                yield f"{meta.name} is a table of the framework, which has guards of its own"
        if self.where is not None and not self._list_operations(seat):
            yield "where= binds lists, which operations= leaves out"

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        policed_models = list(self.policed_models(seat))
        for r in placement.pipeline.db.registrations:
            for meta in policed_models if r.at is At.REPLACE else ():
                if any(_meet(r, seat, meta, operation) for operation in Operation):
                    yield f"the db step of {meta.name} is replaced by {r.name}, so its rows are not judged"
        for entry, other in placement.seats:
            if Trait.HIDES_SECRETS in entry.traits:
                yield from self._secret_problems(policed_models, entry, other)

    def _secret_problems(self, policed: Iterable[ModelMeta], entry: Entry, seat: Seat) -> Iterator[str]:
        reached = {one.name for m in seat.models for one in (m, *reachable_models(m, seat.registered))}
        for meta in policed:
            if meta.name in reached and any(field.secret for field in meta.fields):
                yield (
                    f"{meta.name} has secret fields, which {entry.name} does not keep and a policy may need;"
                    f" register {entry.name} for other models"
                )

    def pieces(self, seat: Seat) -> Iterator[Piece]:
        yield Piece(seat.step, lambda model, operation: None, seat.at)
        if self.where is not None:
            bound_names = {meta.name for meta in self.policed_models(seat)}
            make = partial(self._make_rule, bound_names, seat.registered)
            yield Piece("auth", make, At.AFTER, LAST, self._list_operations(seat))

    def _list_operations(self, seat: Seat) -> frozenset[Operation]:
        """The operations on many rows that `where` binds."""
        if seat.operations is None or Operation.LIST in seat.operations:
            return frozenset({Operation.LIST})
        return seat.operations & _MANY

    def _make_rule(
        self, bound: set[str], models: Models, model: ModelMeta | None, operation: Operation
    ) -> Middleware | None:
        if model is None or model.name not in bound or self.where is None:
            return None
        if model not in self._rules:
            self._rules[model] = WhereRule(self.name, self.where, model, models)
        return self._rules[model]

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={403: ("FORBIDDEN",)})


def _meet(r: Registration, seat: Seat, meta: ModelMeta, operation: Operation) -> bool:
    own: Any = seat.registration
    return any(
        r.matches(meta, operation, item=item) and own.matches(meta, operation, item=item)
        for item in (True, False)
    )


def declared_policies(
    pipeline: Pipeline, models: Sequence[ModelMeta]
) -> Iterator[tuple[type[Model], TablePolicy]]:
    """The policies of a server, with the models whose rows they judge."""
    for r in pipeline.db.registrations:
        entry = r.fn
        if not isinstance(entry, PolicyEntry):
            continue
        policy = TablePolicy(entry.policy, r.operations, has_where=entry.where is not None)
        for meta in models:
            if not meta.is_internal if r.models is None else meta.name in r.models:
                yield meta.cls, policy


# The `where` of a policy: conditions that bind lists of a model in SQL, as scope rules do.
#
# They bind what shows many rows or is worked out from them: lists, counts, exports, aggregates, searches
# and the rows that other models lead to. Single records are for the policy to judge.


Where = Callable[[Context], Any]


class WhereRule(BindingRule):
    """Binds the listed rows of one model to what a function says of the caller."""

    def __init__(self, name: str, where: Where, model: ModelMeta, models: Models) -> None:
        self.__name__ = name
        self._where = where
        self._model = model.name
        self._reader = ConditionReader(Query(model, models))

    async def __call__(self, ctx: Context, next: Next) -> None:
        conditions = await self.conditions(ctx)
        query = ctx.current_query()
        ctx._query = query.with_scope((*query.forced, *conditions))
        await next()

    async def conditions(self, ctx: Context, /) -> Sequence[Narrowed]:
        items = ask_once(self, self._where, ctx)
        if inspect.isawaitable(items):
            items = await items
        if items is ALL:
            return ()
        if not items:
            raise OutOfScope()
        return [self._condition(item) for item in self._pairs(items)]

    def _pairs(self, items: Any) -> Iterable[Any]:
        pairs = items.items() if isinstance(items, Mapping) else items
        if isinstance(pairs, str) or not isinstance(pairs, Iterable):
            raise UnusableScope(f"{self.__name__}: where gave {items!r}, which is no list of conditions")
        return pairs

    def _condition(self, item: Any) -> Narrowed:
        try:
            name, word, value = condition_parts(item, "where")
            if value is None and _takes_value(word):
                # What nobody set must not open the rows that have none; is_null says that it is meant.
                raise OutOfScope()
            return Narrowed(self._reader.condition(name, word, value, "where"), self._model, of_shown=True)
        except InvalidQuery as error:
            raise UnusableScope(f"{self.__name__}: where cannot bind {self._model}: {error}") from error


def _takes_value(word: Any) -> bool:
    kind = operator(word) if isinstance(word, str) else None
    return kind is not None and kind.takes is not Takes.NOTHING


# Whether a caller may see or change a row that code has in hand: the one answer to that question.
#
# Lists, single records, included records, exports, files, hits of a search, histories and audit trails ask
# here, and so does whatever shows rows by another way. Policies, which are functions of the application,
# decide about a row that a bound statement gave. About any other row the conditions that bind the caller
# decide too: `allows_row` asks the database about a row as it is stored, `allows_states` compares a row as
# something else tells it.
#
# judge = runtime.rules[model].judge(Operation.READ, item=True) may_see = await judge.allows_row(ctx, row,
# await ctx.scope_of(meta, Operation.READ))


Policy = Callable[[Any, Any], Any]  # of the context and the record: whether the caller may


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """A policy on one model, for some operations or for all."""

    policy: Policy
    operations: frozenset[Operation] | None
    has_where: bool  # lists are bound in SQL to the rows that it allows

    def covers(self, operation: Operation, *, item: bool) -> bool:
        return self.operations is None or covered(self.operations, operation, item=item)


class RowJudge:
    """Judges rows of one model for one operation: all policies must allow it; false where there are none."""

    def __init__(self, store: Store, policies: Sequence[TablePolicy]) -> None:
        self._store = store
        self._model = store.meta.name
        self._functions = tuple(one.policy for one in policies)
        self.hides_rows = not all(one.has_where for one in policies)  # that SQL does not leave out

    def __bool__(self) -> bool:
        return bool(self._functions)

    async def allow(self, ctx: Context, record: Model) -> bool:
        """Whether policies leave the caller a record that is inside the conditions which bind the caller."""
        views = ctx.policy_views
        if views is not None and self._model in views:
            ctx = views[self._model]
        for policy in self._functions:
            if not await ask(ctx, policy, ctx, record):
                return False
        return True

    async def require(self, ctx: Context, record: Model) -> None:
        """403 unless the caller may touch the record."""
        if not await self.allow(ctx, record):
            raise Forbidden()

    async def require_row(self, ctx: Context, row: Row) -> None:
        """403 unless the caller may touch the row."""
        if self._functions:
            await self.require(ctx, self._store.record(row))

    async def allows_row(self, ctx: Context, row: Row, scope: Scope = ()) -> bool:
        """Whether the caller may see a row as it is stored; `scope` is what no statement has asked yet."""
        if not self._functions and not scope:
            return True
        record = self._store.record(row)
        if scope and await self.find_kept(record.id, scope) is None:
            return False
        return await self.allow(ctx, record)

    async def allows_states(
        self, ctx: Context, states: Iterable[Mapping[str, Any]], now: Row | None, scope: Scope = ()
    ) -> bool:
        """Whether the caller may see a record in all these states, which are values by API name.

        What a state does not tell, the record is taken to have as it is stored `now`. Of a record that is
        gone, that cannot be told, and the record is not shown where a rule asks for it.
        """
        for state in states if self._functions or scope else ():
            if not await self._allows_state(ctx, state, now, scope):
                return False
        return True

    async def _allows_state(
        self, ctx: Context, state: Mapping[str, Any], now: Row | None, scope: Scope
    ) -> bool:
        meta = self._store.meta
        then = past_record(meta, 0, state)
        if now is None and then.missing and (self._functions or _asks_for(meta, scope, then.missing)):
            return False
        pairs = zip(meta.fields, then.row, then.row if now is None else now, strict=True)
        row = [is_now if field.name in then.missing else was for field, was, is_now in pairs]
        values = {field.name: value for field, value in zip(meta.fields, row, strict=True)}
        for rule in scope:
            condition = rule.on(meta)
            items = leaves(() if condition is None else (condition,))
            if condition is not None and not any([await self._holds(item, rule, values) for item in items]):
                return False
        return await self.allow(ctx, self._store.record(row))

    async def _holds(self, item: Compare, rule: Forced | Narrowed, values: Mapping[str, Any]) -> bool:
        if not item.path:
            value = compared_value(item.field, values.get(stored_field(item.field).name))
            return holds(item.op, value, item.value)
        parent, key = item.path[0], item.path[0].key
        parent_id = values.get(key or "")
        if parent_id is None or not isinstance(rule, Forced):
            return False
        condition = replace(rule, name=rule.name.partition(".")[2], model=parent.target)
        store = self._store.stores_by_model[parent.target]
        return await _find_kept(store, str(parent_id), (condition,)) is not None

    async def find_kept(self, record_id: str, scope: Scope = ()) -> Row | None:
        """The row inside the scope, also one that is marked as deleted."""
        return await _find_kept(self._store, record_id, scope)

    async def require_kept(self, ctx: Context, record_id: str) -> None:
        """403 unless the caller may touch the row as it is stored, even deleted; 404 when it is gone."""
        if self._functions:
            row = await self.find_kept(record_id)
            if row is None:
                raise NotFound(model=self._model, record_id=record_id)
            await self.require_row(ctx, row)

    async def allowed_kept(self, ctx: Context, record_ids: Iterable[str]) -> dict[str, Row]:
        """By id, those of the rows that policies leave the caller, also rows that are marked as deleted."""
        store = self._store
        statement = select.kept_many(store.sql, list(dict.fromkeys(record_ids)))
        rows = await executor(store.adapter).fetch(statement)
        place = store.sql.names.index("id")
        decoded_rows = rows if store.decode is None else [store.decode(row) for row in rows]
        return {str(row[place]): row for row in decoded_rows if await self.allows_row(ctx, row)}


async def _find_kept(store: Store, record_id: str, scope: Scope) -> Row | None:
    row = await executor(store.adapter).fetch_one(select.kept_one(store.sql, record_id, (), scope))
    return row if row is None or store.decode is None else store.decode(row)


def _asks_for(meta: ModelMeta, scope: Scope, names: Collection[str]) -> bool:
    """Whether the scope compares one of these fields, or follows one of these keys."""
    for rule in scope:
        condition = rule.on(meta)
        for item in leaves(() if condition is None else (condition,)):
            if (item.path[0].key if item.path else stored_field(item.field).name) in names:
                return True
    return False
