"""The write seam: listeners are told of every stored change inside the transaction of the write.

They are told of writes by requests, code, runs, cascades, circles that are restored together and
scheduled fields; not of raw SQL and migrations. What a listener raises rolls the write back. Rows
that were changed together come in batches, so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from maniflex._caller import Source, caller
from maniflex.db.port import AfterCommit, Row, Tx
from maniflex.errors import ValidationFailed
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.query.query import AnyOf, Compare, Forced, Scope, fixed_values, holds, is_for_reading
from maniflex.sql import cascade
from maniflex.sql.model import ModelSql

BATCH = 500  # rows that are in memory at once


class ChangeKind(StrEnum):
    """What was done to a row."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row; without an id, of rows that no listener looks at.

    `before` is the row under the lock of this write, None for a new one; `after` is the row as it is
    stored now, None for one that was removed. Both are in the order of `meta.fields`, decoded.
    """

    meta: ModelMeta
    operation: ChangeKind
    id: str | None = None
    before: Row | None = None
    after: Row | None = None
    source: Source = Source.CODE


class ChangeListener(Protocol):
    """Something that is told of changes."""

    @property
    def needs_rows(self) -> bool:
        """Whether it looks at `id`, `before` and `after`; a model without such a listener reads none."""

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """These changes of one model were written in this transaction, which has not ended."""


class Listened(Protocol):
    """The store of a model, as far as its listeners are concerned."""

    meta: ModelMeta
    sql: ModelSql
    decode: Callable[[Sequence[Any]], Sequence[Any]] | None
    listeners: Sequence[ChangeListener]
    needs_rows: bool


async def tell(
    store: Listened,
    operation: ChangeKind,
    tx: Tx,
    record_id: str | None = None,
    *,
    before: Row | None = None,
    after: Row | None = None,
    source: Source | None = None,
) -> None:
    """Tell the listeners of a model of one change; without a source, it is the caller's."""
    change = Change(store.meta, operation, record_id, before, after, source or caller().source)
    for listener in store.listeners:
        await listener.note_changes((change,), tx)


async def tell_rows(
    store: Listened,
    operation: ChangeKind,
    tx: Tx,
    rows: Sequence[Row],
    stamps: Mapping[str, Any] | None,
    source: Source | None = None,
) -> None:
    """Tell the listeners of rows that were all given `stamps`, or removed if that is None."""
    names, source = store.sql.names, source or caller().source
    id_place = names.index("id")
    changes = []
    for row in rows:
        after = None if stamps is None else [stamps.get(n, v) for n, v in zip(names, row, strict=True)]
        changes.append(Change(store.meta, operation, row[id_place], row, after, source))
    for listener in store.listeners if changes else ():
        await listener.note_changes(changes, tx)


async def images(store: Listened, tx: Tx, ids: Sequence[str]) -> list[Row]:
    """The rows of these ids, marked ones too, locked until the transaction ends."""
    rows = await tx.fetch(cascade.rows(store.sql, ids))
    return rows if store.decode is None else [store.decode(row) for row in rows]


def after_commit_once(tx: Tx, call: AfterCommit) -> None:
    """Run `call` after the commit, unless an equal one waits for it already."""
    if call not in getattr(tx, "_after_commit", ()):
        tx.after_commit(call)


# What a forced condition means for a write: the row ends up inside it, or there is no write.
#
# A request's values are brought inside where the condition says what they must be. Code that says
# something else is refused. A condition along a path is about the record that the row belongs to: here
# its key must be there, and the statement checks the record (`sql.where.parents_inside`).


def stamp(
    model: ModelMeta, scope: Scope, values: MutableMapping[str, Any], *, only_present: bool = False
) -> None:
    """Bring values about to be written inside the scope; on update only those that are written."""
    for item in fixed_values(model, scope):
        if item.field.name in values or not only_present:
            values[item.field.name] = item.value
    check(model, scope, values, only_present=only_present)


def drop_settled(model: ModelMeta, scope: Scope, changes: MutableMapping[str, Any]) -> None:
    """Take out of an update what the scope of its statement settles: a row inside has these values already,
    and an update that says nothing else changes nothing."""
    for item in fixed_values(model, scope):
        changes.pop(item.field.name, None)


def complete(model: ModelMeta, scope: Scope, values: MutableMapping[str, Any]) -> None:
    """Add what the scope settles and the values leave open."""
    for item in fixed_values(model, scope):
        if values.get(item.field.name) is None:
            values[item.field.name] = item.value


def check(
    model: ModelMeta, scope: Scope, values: MutableMapping[str, Any], *, only_present: bool = False
) -> None:
    """Refuse values that would end outside the scope; on update only those that are written."""
    for rule in scope:
        condition = None if is_for_reading(rule) else rule.on(model)
        if condition is None:
            continue
        items = condition.conditions if isinstance(condition, AnyOf) else (condition,)
        fields = [f for item in items if (f := _deciding_field(model, item)) is not None]
        if only_present and not any(f.name in values for f in fields):
            continue
        if not any(_inside(model, item, values, isinstance(rule, Forced)) for item in items):
            raise ValidationFailed(details=[_outside(f) for f in fields])


def _deciding_field(model: ModelMeta, item: Compare) -> FieldMeta | None:
    """The field of the row itself that decides whether the condition holds."""
    if not item.path:
        return item.field
    first = item.path[0]
    return model.by_name.get(first.key or "") if first.kind is RelationKind.BELONGS_TO else None


def _inside(model: ModelMeta, item: Compare, values: MutableMapping[str, Any], path_is_checked: bool) -> bool:
    """Whether the values satisfy the condition; with `path_is_checked`, the statement checks its path."""
    field = _deciding_field(model, item)
    value = None if field is None else values.get(field.name)
    return path_is_checked and value is not None if item.path else holds(item.op, value, item.value)


def _outside(field: FieldMeta) -> dict[str, str]:
    return {"field": field.api, "message": f'field "{field.api}" has a value that is not allowed here'}
