"""Whether a caller may see or change a row that code has in hand: the one answer to that question.

Lists, single records, included records, exports, files, hits of a search, histories and audit trails ask
here, and so does whatever shows rows by another way. Policies, which are functions of the application, decide
about a row that a bound statement gave. About any other row the conditions that bind the caller decide too:
`allows_row` asks the database about a row as it is stored, `allows_states` compares a row as something else
tells it.

    judge = runtime.rules[model].judge(Operation.READ, item=True)
    may_see = await judge.allows_row(ctx, row, await ctx.scope_of(meta, Operation.READ))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from maniflex.db.current import executor
from maniflex.db.past_rows import past_record
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import Forbidden, NotFound
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.texts import compared_value, stored_field
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import ask
from maniflex.query.query import Compare, Forced, Narrowed, Scope, holds, leaves
from maniflex.sql import select

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context

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
