"""The write seam: a write and what follows from it, committed together or not at all.

Listeners are told of every stored change of a model inside the transaction of the write: of writes by
requests, code, runs, cascades, circles that are restored together and scheduled fields; not of raw SQL and
migrations. What a listener raises rolls the write back. Rows that were changed together come in batches, so
memory does not grow with their number.

A `FollowUp` is a listener that only adds statements, made of the row before and after: a version of its
history, a record of an audit trail. A `Guard` is the statement that one create alone brings along, the
settled key of its request. Where all listeners of a model are follow-ups, a write of one row opens no
transaction: on SQLite it is one batch with them, on PostgreSQL one statement. Where the database finds
anything unusual there, nothing is written, and the write begins anew in a transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from maniflex._caller import NOBODY, Caller, Source, caller
from maniflex.db.current import current_tx, open_block, transaction
from maniflex.db.port import AfterCommit, BatchStatement, CommitRefused, Row, Tx
from maniflex.errors import ConstraintViolation, DatabaseError, ValidationFailed
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.query.query import AnyOf, Compare, Forced, Scope, fixed_values, holds, is_for_reading
from maniflex.sql import cascade, select, write
from maniflex.sql.codec import RowForecast
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


class Change(msgspec.Struct, frozen=True):
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
# Made of a new row: it has to give back a row, or nothing is written. May run on another thread, and twice.
Guard = Callable[[Row], Sql]


class FollowUp:
    """A listener that adds statements and does nothing else."""

    needs_rows = True
    needs_exact_types = False  # of PostgreSQL: no value may be another one in Python than it was sent as
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

    def note_written(self) -> None:
        """A write that was a transaction of its own is committed, with its statements."""

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
        self._in_batch = by_dialect(store.adapter.dialect, sqlite=True, postgres=False)
        self._follow_ups: tuple[FollowUp, ...] = ()
        self._adds_statements = True  # and all listeners do nothing else
        self._needs_exact_types = False
        self._told_after: Sequence[Callable[[], None]] = ()  # once a write that is a transaction is committed
        self._forecast = RowForecast(store.meta.fields)
        self._is_foreseen = True  # new rows were stored as they were sent so far; of PostgreSQL

    def listen(self, listener: ChangeListener) -> None:
        """Tell `listener` of every change of the rows of this model from now on."""
        self.listeners = (*self.listeners, listener)
        self.needs_rows = self.needs_rows or listener.needs_rows
        self._follow_ups = tuple(one for one in self.listeners if isinstance(one, FollowUp))
        self._adds_statements = len(self._follow_ups) == len(self.listeners)
        self._needs_exact_types = any(one.needs_exact_types for one in self._follow_ups)
        self._told_after = tuple(
            one.note_written
            for one in self._follow_ups
            if type(one).note_written is not FollowUp.note_written
        )

    # -- writes of one row; they give it back, None where the statement touched nothing

    async def create(
        self, insert: Sql, values: Mapping[str, Any], tx: Tx | None, guard: Guard | None = None
    ) -> Row | None:
        """Insert a row of these values; `CommitRefused`, with nothing written, where the guard finds no row.

        A guard is for a write that is a transaction of its own.
        """
        store, record_id = self._store, values["id"]
        is_tried = False
        if self._writes_at_once(tx):
            if self._in_batch:
                one = _OneBatch(store, ChangeKind.CREATE, record_id, self._follow_ups, guard)
                return self._tell_committed(await one.run(insert))
            is_tried = self._can_foresee(values, exactly=guard is not None)
            if is_tried:
                after = self._forecast.row(values)
                change = (ChangeKind.CREATE, record_id, None, after)
                sql = self._as_one_statement(change, insert, guard)
                rows = await self._write_as_foreseen(sql)
                if rows is not None:
                    return self._tell_committed(self._first(rows))
        async with self.transaction(tx, late=True) as own_tx:
            row = self._first(await own_tx.write(insert))
            if row is not None:
                await self.tell(ChangeKind.CREATE, own_tx, record_id, after=row)
                if guard is not None:
                    own_tx.guard_commit(guard(row))
        if row is not None and is_tried:  # no refusal: it is stored as another row
            self._is_foreseen = False
        return row

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        scope: Scope,
        references: CheckedReferences,
        tx: Tx | None,
        held: Row | None,
    ) -> Row | None:
        """Change fields of a live, unlocked row inside the scope; `held` is the row, if we hold its lock."""
        store = self._store
        before = after = None
        if held is None and self._writes_at_once(tx):
            if self._in_batch:
                statement = write.update(store.sql, record_id, changes, scope, references)
                one = _OneBatch(store, ChangeKind.UPDATE, record_id, self._follow_ups)
                before_row = select.one(store.sql, record_id, scope)
                return self._tell_committed(await one.run(statement, before_row, changes))
            version, before = await self._row_to_change(record_id, scope, changes)
            if before is not None:
                statement = write.update(store.sql, record_id, changes, scope, references, version)
                after = self._forecast.changed_row(before, changes)
                change = (ChangeKind.UPDATE, record_id, before, after)
                sql = self._as_one_statement(change, statement)
                rows = await self._write_as_foreseen(sql)
                if rows:
                    return self._tell_committed(self._first(rows))
        async with self.transaction(tx) as own_tx:
            if held is None and self.needs_rows:
                held = await store.lock_unchanged(record_id, tx=own_tx, scope=scope, changes=changes)
            rows = await store.write_update(record_id, changes, scope, references, own_tx, held)
            row = self._first(rows)
            if row is not None:
                await self.tell(ChangeKind.UPDATE, own_tx, record_id, before=held, after=row)
                if before is not None and held is not None:
                    # Unless another has changed the row meanwhile, the database made it another one.
                    self._is_foreseen &= list(before) != list(held) or list(row) == after
        return row

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
                try:
                    if len(unseen) == 1:
                        return bool(await store.adapter.write(unseen[0]))
                    return bool((await store.adapter.batch(unseen))[-1])
                except ConstraintViolation:  # another has changed the row at once, and made that version
                    return False
        if self._in_batch:
            statement = write.delete(store.sql, record_id, marks, scope, told=True)
            first = select.one(store.sql, record_id, scope) if marks else None
            one = _OneBatch(store, ChangeKind.DELETE, record_id, self._follow_ups)
            return self._tell_committed(await one.run(statement, first)) is not None
        version, before = await self._row_to_change(record_id, scope, marks)
        if before is None:
            return False
        statement = write.delete(store.sql, record_id, marks, scope, version, told=True)
        after = self._forecast.changed_row(before, marks) if marks else None
        change = (ChangeKind.DELETE, record_id, before, after)
        rows = await self._write_as_foreseen(self._as_one_statement(change, statement))
        return bool(rows) and self._tell_committed(rows[0] if rows else None) is not None

    async def _row_to_change(
        self, record_id: str, scope: Scope, changes: Mapping[str, Any]
    ) -> tuple[Any, Row | None]:
        """The version of a row and the row, where these changes of it can be foreseen; of PostgreSQL."""
        store = self._store
        if not self._can_foresee(changes):
            return None, None
        row = await store.adapter.fetch_one(select.one(store.sql, record_id, scope, versioned=True))
        if row is None:
            return None, None
        return row[-1], store.decode_before(row[:-1], changes)

    def _writes_at_once(self, tx: Tx | None) -> bool:
        """Whether a write is a transaction of its own, to which statements are added and nothing else."""
        if not self._adds_statements or tx is not None:
            return False
        return open_block() is None or current_tx(self._store.adapter) is None

    def _can_foresee(self, values: Mapping[str, Any], *, exactly: bool = False) -> bool:
        """Whether it is known how PostgreSQL will store these values."""
        if not self._is_foreseen:
            return False
        return not (exactly or self._needs_exact_types) or self._forecast.is_certain(values)

    def _as_one_statement(
        self, change: tuple[ChangeKind, str, Row | None, Row | None], main: Sql, guard: Guard | None = None
    ) -> Sql:
        """The write and what follows from it, of which each gets by with its first statement: of PostgreSQL.

        The last part of the change is the row as it will be stored, which the statement makes sure of.
        """
        kind, record_id, before, after = change
        statements: list[Sql] = []
        if self._follow_ups:
            who = caller()
            changes = (Change(self._store.meta, kind, record_id, before, after, who.source),)
            firsts = [next(one.follow(changes, who), None) for one in self._follow_ups]
            statements = [sql for sql in firsts if sql is not None]
        if guard is not None and after is not None:
            statements.append(guard(after))
        if not statements:
            return main
        return write.with_follow_ups(self._store.sql, main, statements, exact=after is not None)

    async def _write_as_foreseen(self, sql: Sql) -> Sequence[Row] | None:
        """The rows of the write; None, with nothing written, where anything is not as it was foreseen."""
        try:
            return await self._store.adapter.write(sql)
        except DatabaseError as error:
            if type(error) is DatabaseError:  # as one that divides by zero
                return None
            raise

    def _tell_committed(self, row: Row | None) -> Row | None:
        """The row of a write that is committed; those who asked for it are told."""
        if self._told_after and row is not None:
            for call in self._told_after:
                call()
        return row

    def _first(self, rows: Sequence[Row]) -> Row | None:
        if not rows:
            return None
        return rows[0] if self._store.decode is None else self._store.decode(rows[0])

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


class _OneBatch:
    """A write of one row and what follows from it, as one batch: of SQLite."""

    # On the class, so that a batch sets only what it has.
    _changes: Mapping[str, Any] = {}
    _place = 0  # of the write among the statements
    _row: Row | None = None  # that it gave back
    _statements: Statements | None = None

    def __init__(
        self,
        store: Store,
        kind: ChangeKind,
        record_id: str,
        follow_ups: Sequence[FollowUp],
        guard: Guard | None = None,
    ) -> None:
        self._store = store
        self._kind = kind
        self._id = record_id
        self._follow_ups = follow_ups
        self._guard = guard
        self._who = caller() if follow_ups else NOBODY  # here, because batches run on a thread

    async def run(
        self, main: Sql, before: Sql | None = None, changes: Mapping[str, Any] | None = None
    ) -> Row | None:
        """The row that the write gives back; `before` reads it as it was, where the write does not tell."""
        if changes:
            self._changes = changes
        statements: list[BatchStatement] = [main]
        if before is not None:
            statements, self._place = [before, main], 1
        for one in self._follow_ups:
            statements += [self._follow] * one.most_statements
        if self._guard is not None:
            statements += (self._guard_row, self._require_guarded)
        rows = await self._store.adapter.batch(statements)
        return self._row if rows[self._place] else None

    def _follow(self, rows: Sequence[list[Row]]) -> Sql | None:
        """The statement behind those that gave these rows back."""
        if len(rows) > self._place + 1:
            return None if self._statements is None else _answer(self._statements, rows[-1])
        self._statements = None  # of a try before this one
        row = self._written_row(rows)
        if row is None:
            return None
        before = self._store.decode_before(rows[0][0], self._changes) if self._place else None
        after: Row | None = row
        if self._kind is ChangeKind.DELETE and before is None:
            before, after = row, None
        change = Change(self._store.meta, self._kind, self._id, before, after, self._who.source)
        self._statements = _follow_all(self._follow_ups, (change,), self._who)
        return next(self._statements, None)

    def _guard_row(self, rows: Sequence[list[Row]]) -> Sql | None:
        row = self._row if self._follow_ups else self._written_row(rows)
        return None if row is None or self._guard is None else self._guard(row)

    def _require_guarded(self, rows: Sequence[list[Row]]) -> None:
        if self._row is not None and not rows[-1]:
            raise CommitRefused("the guard of the write changed no row")

    def _written_row(self, rows: Sequence[list[Row]]) -> Row | None:
        self._row = self._decode(rows[-1][0]) if rows[-1] else None
        return self._row

    def _decode(self, row: Row) -> Row:
        return row if self._store.decode is None else self._store.decode(row)


def _follow_all(follow_ups: Sequence[FollowUp], changes: Sequence[Change], who: Caller) -> Statements:
    if len(follow_ups) == 1:
        return follow_ups[0].follow(changes, who)
    return _follow_each(follow_ups, changes, who)


def _follow_each(follow_ups: Sequence[FollowUp], changes: Sequence[Change], who: Caller) -> Statements:
    for one in follow_ups:
        yield from one.follow(changes, who)


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
