"""The write seam: a write and what follows from it, committed together or not at all.

Listeners are told of every stored change of a model inside the transaction of the write: of writes by
requests, code, runs, cascades, circles that are restored together and scheduled fields; not of raw SQL and
migrations. What a listener raises rolls the write back. Rows that were changed together come in batches, so
memory does not grow with their number.

A `FollowUp` is a listener that only adds statements, made of the row before and after: a version of its
history, a record of an audit trail, the settled key of a request. Where all listeners of a model are such,
a write of one row opens no transaction: on SQLite it is one batch with them, on PostgreSQL one statement.
Where the database finds anything unusual there, nothing is written, and the write begins anew in a
transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from maniflex._caller import Caller, Source, caller
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import AfterCommit, BatchStatement, Row, Tx
from maniflex.errors import ConstraintViolation, DatabaseError, ValidationFailed
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.query.query import AnyOf, Compare, Forced, Scope, fixed_values, holds, is_for_reading
from maniflex.sql import cascade, select, write
from maniflex.sql.codec import returned_value
from maniflex.sql.statement import Sql, by_dialect

if TYPE_CHECKING:
    from maniflex.db.references import CheckedReferences
    from maniflex.db.store import Store

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


Statements = Generator[Sql, Sequence[Row], None]  # each is answered with the rows that it gives back


class FollowUp:
    """A listener that adds statements and does nothing else."""

    needs_rows = True
    most_statements = 1  # behind a write of one row

    def follow(self, changes: Sequence[Change], who: Caller) -> Statements:
        """The writes that follow from these changes of one model, made by this caller.

        The first gives back a row for each change that it is done for. Where that is not all of them, others
        may follow; where it is, PostgreSQL runs no other, so two that belong together are one statement. It
        may run on another thread, and twice.
        """
        raise NotImplementedError

    def delete_unseen(
        self, record_id: str, stamps: Mapping[str, Any], scope: Scope, who: Caller
    ) -> Sequence[Sql]:
        """The delete of a row, which `stamps` mark if there are any, and all that follows from it.

        For deletes that nothing else follows from, so that the row need not leave the database. The last
        statement gives the id back; where it gives none, nothing was written. None at all: not of this one.
        """
        return ()

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """Run the statements in a transaction that is open."""
        statements = self.follow(changes, caller())
        sql = next(statements, None)
        while sql is not None:
            sql = _answer(statements, await tx.write(sql))


def _answer(statements: Statements, rows: Sequence[Row]) -> Sql | None:
    """The statement behind the one that gave these rows back."""
    try:
        return statements.send(rows)
    except StopIteration:
        return None


class WriteSeam:
    """What follows from the writes of one model."""

    def __init__(self, store: Store) -> None:
        self.listeners: Sequence[ChangeListener] = ()
        self.needs_rows = False  # whether a listener looks at the rows
        self._store = store
        self._follow_ups: tuple[FollowUp, ...] = ()
        self._adds_statements = True  # and all listeners do nothing else
        self._is_foreseen = True  # new rows were stored as they were sent so far; of PostgreSQL

    def listen(self, listener: ChangeListener) -> None:
        """Tell `listener` of every change of the rows of this model from now on."""
        self.listeners = (*self.listeners, listener)
        self.needs_rows = self.needs_rows or listener.needs_rows
        self._follow_ups = tuple(one for one in self.listeners if isinstance(one, FollowUp))
        self._adds_statements = len(self._follow_ups) == len(self.listeners)

    # -- writes of one row; what they give back is empty where the statement touched nothing

    async def create(
        self, insert: Sql, values: Mapping[str, Any], tx: Tx | None, also: FollowUp | None = None
    ) -> Sequence[Row]:
        """Insert a row of these values.

        `also` follows last of all, from a write that is a transaction of its own. Where its statement changes
        no row, nothing is written: `CommitRefused`.
        """
        store, record_id = self._store, values["id"]
        at_once = self._writes_at_once(tx)
        if at_once:
            follow_ups = self._follow_ups if also is None else (*self._follow_ups, also)
            one = OneWrite(store, ChangeKind.CREATE, record_id, follow_ups)
            if by_dialect(store.adapter.dialect, sqlite=True, postgres=False):
                return await one.in_batch(insert)
            after = self._row_to_expect(insert, values, exact=also is not None)
            rows = None if after is None else await one.in_statement(insert, None, after, exact=bool(also))
            if rows is not None:
                return rows
        async with self.transaction(tx, late=True) as own_tx:
            rows = await own_tx.write(insert)
            if rows:
                row = rows[0] if store.decode is None else store.decode(rows[0])
                await self.tell(ChangeKind.CREATE, own_tx, record_id, after=row)
                if also is not None:
                    change = Change(store.meta, ChangeKind.CREATE, record_id, None, row, caller().source)
                    own_tx.guard_commit(next(also.follow((change,), caller())))
        if rows and at_once and also is not None:  # no refusal: the row is another one than was foreseen
            self._is_foreseen = False
        return rows

    def _row_to_expect(self, insert: Sql, values: Mapping[str, Any], *, exact: bool) -> Row | None:
        """The row that PostgreSQL will store; None where that has to be certain (`exact`) and is not."""
        if exact:
            return write.row_to_expect(self._store.sql, insert) if self._is_foreseen else None
        return [returned_value(f.kind, values[f.name]) for f in self._store.meta.fields]

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        scope: Scope,
        references: CheckedReferences,
        tx: Tx | None,
        held: Row | None,
    ) -> Sequence[Row]:
        """Change fields of a live, unlocked row inside the scope; `held` is the row, if we hold its lock."""
        store = self._store
        if held is None and self._writes_at_once(tx):
            one = OneWrite(store, ChangeKind.UPDATE, record_id, self._follow_ups)
            if by_dialect(store.adapter.dialect, sqlite=True, postgres=False):
                statement = write.update(store.sql, record_id, changes, scope, references)
                return await one.in_batch(statement, select.one(store.sql, record_id, scope))
            row = await store.adapter.fetch_one(select.one(store.sql, record_id, scope, versioned=True))
            if row is not None:
                statement = write.update(store.sql, record_id, changes, scope, references, row[-1])
                before = row[:-1] if store.decode is None else store.decode(row[:-1])
                rows = await one.in_statement(statement, before, self._changed(before, changes))
                if rows:
                    return rows
        async with self.transaction(tx) as own_tx:
            if held is None and self.needs_rows:
                held = await store.lock_unchanged(record_id, tx=own_tx, scope=scope)
            rows = await store.write_update(record_id, changes, scope, references, own_tx, held)
            if rows:
                row = rows[0] if store.decode is None else store.decode(rows[0])
                await self.tell(ChangeKind.UPDATE, own_tx, record_id, before=held, after=row)
            return rows

    def _changed(self, row: Row, changes: Mapping[str, Any]) -> Row:
        """The row as PostgreSQL will give it back after these changes."""
        fields = zip(self._store.meta.fields, row, strict=True)
        return [returned_value(f.kind, changes[f.name]) if f.name in changes else old for f, old in fields]

    async def delete_at_once(
        self, record_id: str, marks: Mapping[str, Any], scope: Scope, tx: Tx | None
    ) -> bool:
        """Remove or mark an unlocked row inside the scope, to which no other refers; whether it is done."""
        store = self._store
        if not self._writes_at_once(tx):
            return False
        if len(self._follow_ups) == 1:
            unseen = self._follow_ups[0].delete_unseen(record_id, marks, scope, caller())
            if unseen:
                return await self._delete_unseen(unseen)
        one = OneWrite(store, ChangeKind.DELETE, record_id, self._follow_ups)
        if by_dialect(store.adapter.dialect, sqlite=True, postgres=False):
            statement = write.delete(store.sql, record_id, marks, scope, told=True)
            before = select.one(store.sql, record_id, scope) if marks else None
            return bool(await one.in_batch(statement, before))
        row = await store.adapter.fetch_one(select.one(store.sql, record_id, scope, versioned=True))
        if row is None:
            return False
        statement = write.delete(store.sql, record_id, marks, scope, row[-1], told=True)
        row = row[:-1] if store.decode is None else store.decode(row[:-1])
        return bool(await one.in_statement(statement, row, self._changed(row, marks) if marks else None))

    async def _delete_unseen(self, statements: Sequence[Sql]) -> bool:
        adapter = self._store.adapter
        try:
            if len(statements) == 1:
                return bool(await adapter.write(statements[0]))
            return bool((await adapter.batch(statements))[-1])
        except ConstraintViolation:  # another has changed the row at the same time, and made that version
            return False

    def _writes_at_once(self, tx: Tx | None) -> bool:
        """Whether a write is a transaction of its own, to which statements are added and nothing else."""
        return self._adds_statements and tx is None and current_tx(self._store.adapter) is None

    # -- listeners

    @asynccontextmanager
    async def transaction(self, tx: Tx | None, *, late: bool = False) -> AsyncIterator[Tx]:
        """The transaction handed over, the open one, or one for this write."""
        if tx is not None:
            yield tx
        else:
            async with transaction(self._store.adapter, late=late) as own_tx:
                yield own_tx

    async def tell(
        self,
        operation: ChangeKind,
        tx: Tx,
        record_id: str | None = None,
        *,
        before: Row | None = None,
        after: Row | None = None,
        source: Source | None = None,
    ) -> None:
        """Tell the listeners of one change; without a source, it is the caller's."""
        change = Change(self._store.meta, operation, record_id, before, after, source or caller().source)
        for listener in self.listeners:
            await listener.note_changes((change,), tx)

    async def tell_rows(
        self,
        operation: ChangeKind,
        tx: Tx,
        rows: Sequence[Row],
        stamps: Mapping[str, Any] | None,
        source: Source | None = None,
    ) -> None:
        """Tell the listeners of rows that were all given `stamps`, or removed if that is None."""
        store, source = self._store, source or caller().source
        names, changes = store.sql.names, []
        id_place = names.index("id")
        for row in rows:
            after = None if stamps is None else [stamps.get(n, v) for n, v in zip(names, row, strict=True)]
            changes.append(Change(store.meta, operation, row[id_place], row, after, source))
        for listener in self.listeners if changes else ():
            await listener.note_changes(changes, tx)

    async def images(self, tx: Tx, ids: Sequence[str]) -> list[Row]:
        """The rows of these ids, marked ones too, locked until the transaction ends."""
        rows = await tx.fetch(cascade.rows(self._store.sql, ids))
        return rows if self._store.decode is None else [self._store.decode(row) for row in rows]


class OneWrite:
    """A write of one row and the statements that follow from it, as one call of the database."""

    def __init__(
        self, store: Store, kind: ChangeKind, record_id: str, follow_ups: Sequence[FollowUp]
    ) -> None:
        self._store = store
        self._kind = kind
        self._id = record_id
        self._follow_ups = follow_ups
        self._who = caller()  # here, because batches run on a thread
        self._place = 0  # of the write among the statements
        self._statements: Statements

    async def in_batch(self, main: Sql, before: Sql | None = None) -> Sequence[Row]:
        """The rows of the write; `before` reads the row as it was, where the write does not give it back."""
        first: tuple[BatchStatement, ...] = () if before is None else (before,)
        self._place = len(first)
        most = sum(one.most_statements for one in self._follow_ups)
        # One more, so that the last of them hears of its rows.
        rows = await self._store.adapter.batch((*first, main, *[self._next] * (most + 1)))
        return rows[self._place]

    def _next(self, rows: Sequence[list[Row]]) -> Sql | None:
        """The statement behind those that gave these rows back."""
        if len(rows) > self._place + 1:
            return _answer(self._statements, rows[-1])
        self._statements = self._follow(rows)  # perhaps anew
        return next(self._statements, None)

    def _follow(self, rows: Sequence[list[Row]]) -> Statements:
        if not rows[-1]:  # nothing was written
            return
        written, was_read = self._decode(rows[-1][0]), bool(self._place)
        if self._kind is ChangeKind.DELETE and not was_read:
            change = self._change(written, None)
        else:
            change = self._change(self._decode(rows[0][0]) if was_read else None, written)
        for one in self._follow_ups:
            yield from one.follow((change,), self._who)

    async def in_statement(
        self, main: Sql, before: Row | None, after: Row | None, *, exact: bool = False
    ) -> Sequence[Row] | None:
        """The rows of the write, where the database runs all of it as one statement: of PostgreSQL.

        `after` is the row as it will be stored, which `exact` makes sure of. None, with nothing written,
        where it is not, or where a follow-up does not get by with one statement.
        """
        changes = (self._change(before, after),)
        statements = [next(one.follow(changes, self._who), None) for one in self._follow_ups]
        follow_ups = [sql for sql in statements if sql is not None]
        if follow_ups:
            main = write.with_follow_ups(self._store.sql, main, follow_ups, exact=exact)
        try:
            return await self._store.adapter.write(main)
        except DatabaseError as error:
            if type(error) is DatabaseError:  # as one that divides by zero
                return None
            raise

    def _change(self, before: Row | None, after: Row | None) -> Change:
        return Change(self._store.meta, self._kind, self._id, before, after, self._who.source)

    def _decode(self, row: Row) -> Row:
        return row if self._store.decode is None else self._store.decode(row)


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
