"""Totals that follow their rows: `server.rollup(Order, "total", "sum", Line, "amount")`.

A rollup listens at the write seam of the child, so it hears of every stored change: of requests, code,
cascades, sweeps, restores and batches. In the transaction of the change the parents are locked in the order
of their ids and then counted anew: of two writers the second counts what the first has stored, and two that
move rows in opposite directions wait for each other instead of colliding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex._names import did_you_mean
from maniflex.db.aggregates import aggregate
from maniflex.db.current import transaction
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.db.write_seam import Change, ChangeKind
from maniflex.errors import InvalidQuery
from maniflex.model.base import Model
from maniflex.model.meta import NUMBERS, FieldMeta, Kind, ModelMeta, RelationKind
from maniflex.pipeline.runtime import Runtime
from maniflex.query.aggregate import Aggregation, build
from maniflex.query.conditions import ConditionReader, Where
from maniflex.query.query import Query
from maniflex.sql import cascade, write

OPS = ("sum", "count", "avg", "min", "max")
_AT_ONCE = 500  # parents
_ZERO_OF_NONE = ("sum", "count")


@dataclass(frozen=True, slots=True)
class RollupSpec:
    """What `server.rollup` was given."""

    parent: type[Model] | str
    field: str
    op: str
    child: type[Model] | str
    child_field: str | None
    on: str | None
    where: Where | None

    @property
    def label(self) -> str:
        """How messages name it."""
        names = [one if isinstance(one, str) else one.__name__ for one in (self.parent, self.child)]
        return f"rollup {names[0]}.{self.field} of {names[1]}"


def rollup_problems(specs: Sequence[RollupSpec], runtime: Runtime) -> Iterator[str]:
    """What is wrong with the rollups of a server, one sentence each."""
    targets: set[tuple[str, str]] = set()
    for spec in specs:
        for problem in _problems(spec, runtime):
            yield f"{spec.label}: {problem}"
        parent, _ = (_name(one) for one in (spec.parent, spec.child))
        if (parent, spec.field) in targets:
            yield f"{spec.label}: the field is one of another rollup already"
        targets.add((parent, spec.field))


def _name(model: type[Model] | str) -> str:
    return model if isinstance(model, str) else model.__name__


def _problems(spec: RollupSpec, runtime: Runtime) -> Iterator[str]:
    parent, child = (runtime.find_store(_name(one)) for one in (spec.parent, spec.child))
    for model, store in ((spec.parent, parent), (spec.child, child)):
        if store is None:
            names = [one.meta.name for one in runtime.stores.values()]
            yield f"no model named {_name(model)!r} is registered{did_you_mean(_name(model), names)}"
    if parent is None or child is None:
        return
    if parent.adapter is not child.adapter or not child.has_transactions:
        yield f"{child.meta.name} is in another database than {parent.meta.name}, or in none"
    if child.sql.readonly or parent.sql.readonly:
        yield "the records of a query model are not written"
    target = parent.meta.by_name.get(spec.field)
    if target is None:
        yield f"{parent.meta.name} has no field {spec.field!r}{did_you_mean(spec.field, parent.meta.by_name)}"
    elif target.name not in parent.meta.closed:
        yield f"{spec.field} must be readonly, because clients may not say what the rows do"
    keys = _keys_between(parent.meta, child.meta)
    if spec.on is not None and spec.on not in keys:
        hint = did_you_mean(spec.on, keys)
        yield f"on={spec.on!r} is no key of {child.meta.name} to {parent.meta.name}{hint}"
    elif spec.on is None and len(keys) != 1:
        what = (
            f"has several keys to it ({', '.join(keys)}); say which with on=" if keys else "has no key to it"
        )
        yield f"{child.meta.name} {what}"
    if spec.op not in OPS:
        yield f"op={spec.op!r} is none of {', '.join(OPS)}"
        return
    yield from _value_problems(spec, target, child.meta)
    try:
        conditions = ConditionReader(Query(child.meta, child.models)).conditions(spec.where)
    except InvalidQuery as error:
        yield f"where: {error.message}"
    else:
        if any(item.path for item in conditions):
            yield f"where: only fields of {child.meta.name} itself, whose changes are heard of"


def _value_problems(spec: RollupSpec, target: FieldMeta | None, child: ModelMeta) -> Iterator[str]:
    source = None if spec.child_field is None else child.by_name.get(spec.child_field)
    if spec.op == "count":
        if spec.child_field is not None:
            yield "count takes no child_field"
        if target is not None and target.kind is not Kind.INT:
            yield f"{spec.field} holds a count, so it is an int"
        return
    if source is None:
        hint = did_you_mean(str(spec.child_field), child.by_name)
        yield f"{child.name} has no field {spec.child_field!r}{hint}"
        return
    if source.encrypted is not None:
        yield f"{source.name} is encrypted, so no database can compute with it"
    if spec.op in ("sum", "avg") and source.kind not in NUMBERS:
        yield f"{source.name} is no number"
    if target is None:
        return
    fitting = {source.kind} if spec.op != "avg" else {Kind.FLOAT, Kind.DECIMAL}
    if target.kind not in fitting:
        yield f"{target.name} is of another kind than the {spec.op} of {source.name}"
    if spec.op not in _ZERO_OF_NONE and not target.nullable:
        yield f"{target.name} must be nullable, because there is no {spec.op} of no rows"


def _keys_between(parent: ModelMeta, child: ModelMeta) -> list[str]:
    relations = child.relations.values()
    return [
        r.key for r in relations if r.kind is RelationKind.BELONGS_TO and r.target == parent.name and r.key
    ]


class Rollup:
    """One total of one model, kept by the write seam of another."""

    needs_rows = True

    def __init__(self, spec: RollupSpec, runtime: Runtime) -> None:
        self._parent = runtime.store(_name(spec.parent))
        self._child = child = runtime.store(_name(spec.child))
        self._field = spec.field
        self._key = spec.on or _keys_between(self._parent.meta, child.meta)[0]
        self._empty = 0 if spec.op in _ZERO_OF_NONE else None
        self._query = Query(child.meta, child.models)
        self._measure = (spec.op, spec.child_field, "total")
        self._conditions = list(_pairs(spec.where))
        names = {self._key, *([spec.child_field] if spec.child_field is not None else ())}
        names |= {item.field.name for item in ConditionReader(self._query).conditions(spec.where)}
        marker = child.meta.soft_delete
        names |= set() if marker is None else {marker.field}
        self._key_place = child.sql.names.index(self._key)
        self._places = [place for place, name in enumerate(child.sql.names) if name in names]

    @property
    def parent(self) -> Store:
        """Whose records have the total."""
        return self._parent

    def listen(self) -> None:
        """Hear of every change of a child from now on."""
        self._child.seam.listen(self)

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """Compute the totals of all parents anew that these changes concern."""
        ids: set[str] = set()
        for change in changes:
            if self._concerns(change):
                rows = (row for row in (change.before, change.after) if row is not None)
                ids |= {row[self._key_place] for row in rows if row[self._key_place] is not None}
        await self.recompute(sorted(ids), tx)

    def _concerns(self, change: Change) -> bool:
        before, after = change.before, change.after
        if before is None or after is None:
            return True
        return any(before[place] != after[place] for place in self._places)

    async def recompute(self, ids: Sequence[str], tx: Tx) -> int:
        """Set the totals of these parents, in the order of their ids; how many were others."""
        number = 0
        for first in range(0, len(ids), _AT_ONCE):
            number += await self._recompute_some(ids[first : first + _AT_ONCE], tx)
        return number

    async def _recompute_some(self, ids: Sequence[str], tx: Tx) -> int:
        store = self._parent
        # First the locks, and then a statement of its own: it sees what was stored by who had them before.
        stored_rows = await tx.fetch(cascade.rows(store.sql, ids, keeps_keys=True))
        rows = stored_rows if store.decode is None else [store.decode(row) for row in stored_rows]
        totals = {row[self._key]: row["total"] for row in await aggregate(self._child, self._ask(ids), tx=tx)}
        number = 0
        for row in rows:
            total = totals.get(row[store.id_place], self._empty)
            number += await self._set(row, self._empty if total is None else total, tx)
        return number

    def _ask(self, ids: Sequence[str]) -> Aggregation:
        where = [(self._key, "in", list(ids)), *self._conditions]
        return build(
            self._query,
            select=[self._measure],
            group_by=self._key,
            where=where,
            having=None,
            order_by=None,
            limit=len(ids),
        )

    async def _set(self, row: Row, total: Any, tx: Tx) -> bool:
        store = self._parent
        changes = store.meta.validator.patch_from_code({self._field: total})
        if row[store.sql.names.index(self._field)] == changes[self._field]:
            return False
        record_id = str(row[store.id_place])
        stamps = {**changes, "updated_at": store.clock.now()}
        [stored_row] = await store.execute_write(write.assign(store.sql, record_id, stamps), tx)
        after = stored_row if store.decode is None else store.decode(stored_row)
        if store.seam.listeners:
            await store.seam.tell(ChangeKind.UPDATE, tx, record_id, before=row, after=after)
        return True


def _pairs(where: Where | None) -> Iterator[Any]:
    """The conditions one by one, however they were given."""
    if where is None:
        return
    yield from where.items() if isinstance(where, Mapping) else where


class Rollups:
    """All totals of one server."""

    def __init__(self, specs: Iterable[RollupSpec], runtime: Runtime) -> None:
        self._rollups = [Rollup(spec, runtime) for spec in specs]

    def listen(self) -> None:
        for rollup in self._rollups:
            rollup.listen()

    async def backfill(self) -> int:
        """Compute all totals anew, also those of parents without a child; how many were others."""
        return sum([await self._backfill_one(rollup) for rollup in self._rollups])

    async def _backfill_one(self, rollup: Rollup) -> int:
        store, last_id, number = rollup.parent, "", 0
        while True:
            async with transaction(store.adapter) as tx:
                rows = await tx.fetch(cascade.ids_after(store.sql, last_id, _AT_ONCE))
                ids = [row[0] for row in rows]
                number += await rollup.recompute(ids, tx)
            if len(ids) < _AT_ONCE:
                return number
            last_id = ids[-1]


def keep_rollups(specs: Sequence[RollupSpec], runtime: Runtime) -> Rollups | None:
    """Listen for the changes that the totals depend on; none of a declaration with mistakes."""
    if any(rollup_problems(specs, runtime)):
        return None
    rollups = Rollups(specs, runtime)
    rollups.listen()
    return rollups
