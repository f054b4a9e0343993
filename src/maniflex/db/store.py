"""Rows of one model in one database: the only place that pairs statements with an executor.

Rows come out as sequences in the order of `meta.fields`, decoded to Python's types except JSON,
which stays text until it is read. For records, use `Records`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from maniflex._caller import Source
from maniflex._clock import Clock
from maniflex.config import Limits
from maniflex.db.budget import Budget
from maniflex.db.cascade import ReferringKey, bring_back, circle_of, deletion, links_to, remove, undeletion
from maniflex.db.current import executor, transaction
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.db.references import CheckedReferences, References, StoresByModel
from maniflex.db.unchanged import (
    forget_version,
    hold_changed,
    lock_as_read,
    lock_unchanged,
    mark_changed,
    refuse_changed,
    versions_read,
    write_unchanged,
)
from maniflex.db.write_seam import ChangeKind, Guard, WriteSeam
from maniflex.encryption.keyring import Keyring, opened_ahead
from maniflex.errors import (
    ConstraintViolation,
    DeclarationError,
    DecryptionError,
    NotFound,
    RecordLocked,
    ValidationFailed,
)
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationMeta
from maniflex.model.texts import has_edits, merge_edits
from maniflex.model.value_rules import detail
from maniflex.query.query import Filter, Models, Query
from maniflex.sql import cascade, search, select, write
from maniflex.sql.cipher import NO_KEYS
from maniflex.sql.listing import Listing, Listings
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import longest_indexed
from maniflex.sql.where import Scope, parent_keys

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


class Store:
    """Reads and writes rows of one model."""

    counts = True  # whether a page says how many rows there are in all
    has_transactions = True  # whether a transaction holds its rows against others, and rolls writes back

    def __init__(
        self, meta: ModelMeta, adapter: Adapter, metadata: sa.MetaData, clock: Clock, keys: Keyring = NO_KEYS
    ) -> None:
        self.meta = meta
        self.adapter = adapter
        self.home = adapter  # whose transactions a request to the model opens
        self.clock = clock
        self.seam = WriteSeam(self)
        self.sql = ModelSql(meta, adapter.dialect, metadata, keys)
        self.decode = self.sql.decode
        # On SQLite the transaction is the lock.
        self._locks_rows = by_dialect(adapter.dialect, sqlite=False, postgres=True)
        self.models: Models = {meta.name: meta}
        self.listings = Listings(self.sql)
        self.stores_by_model: StoresByModel = {meta.name: self}
        self.references: References | None = None
        self.links: tuple[ReferringKey, ...] = ()
        self.guarded: Collection[FieldMeta] = ()  # fields of the model that may be hidden from a caller
        self._indexed = IndexedTexts(meta)
        self._width = len(meta.fields)
        self.id_place = next((i for i, f in enumerate(meta.fields) if f.name == "id"), 0)
        self._name_fields = FieldsAtFault(meta).name_in

    async def find(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> Row | None:
        """The live row inside the scope, or None."""
        row = await executor(self.adapter, tx).fetch_one(select.one(self.sql, record_id, scope))
        return row if row is None or self.decode is None else self.decode(row)

    async def read(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> Row:
        """The live row inside the scope; a transaction that has read it writes it only if it is unchanged."""
        run = executor(self.adapter, tx)
        versions = None if run.read_versions is None else versions_read(self.sql, run)
        with_version = versions is not None
        row = await run.fetch_one(select.one(self.sql, record_id, scope, versioned=with_version))
        if row is None:
            raise self._missing(record_id)
        if versions is not None:
            versions.note(record_id, row[-1])
            row = row[:-1]
        return row if self.decode is None else self.decode(row)

    async def lock(
        self, record_id: str, *, tx: Tx, scope: Scope = (), changes: Mapping[str, Any] = NO_CHANGES
    ) -> Row:
        """The live row, which no other transaction can change until ours ends; for a write of `changes`."""
        row = await tx.fetch_one(select.one(self.sql, record_id, scope, for_update=self._locks_rows))
        if row is None:
            raise self._missing(record_id)
        forget_version(self.sql, record_id, tx)
        return self.decode_before(row, changes)

    async def lock_as_read(self, record_id: str, *, tx: Tx, scope: Scope = ()) -> Row:
        """As `lock`, for code that may have read the row before: it must not have changed since."""
        if not self._locks_rows:
            return await self.lock(record_id, tx=tx, scope=scope)
        row = await lock_as_read(self.sql, record_id, tx, scope)
        if row is None:
            raise self._missing(record_id)
        return row if self.decode is None else self.decode(row)

    async def lock_unchanged(
        self, record_id: str, *, tx: Tx, scope: Scope = (), changes: Mapping[str, Any] = NO_CHANGES
    ) -> Row:
        """As `lock`, for a write that shows its row to no one: it must be as this transaction read it."""
        if not self._locks_rows:
            return await self.lock(record_id, tx=tx, scope=scope, changes=changes)
        row = await lock_unchanged(self.sql, record_id, tx, scope)
        if row is None:
            raise self._missing(record_id)
        return self.decode_before(row, changes)

    def decode_before(self, row: Row, changes: Mapping[str, Any]) -> Row:
        """The row that changes are about to be written to; a secret that they replace need not open."""
        if self.decode is None:
            return row
        try:
            return self.decode(row)
        except DecryptionError:
            decode = self.sql.decoder(self.meta.fields, replaced=changes)
            assert decode is not None
            return decode(row)

    def listing(self, query: Query) -> Listing:
        """The listing of a query that code has made or changed."""
        return Listing(self.sql, query)

    def query(self, query_string: bytes) -> Query:
        """What a client asks for with this query string."""
        return self.listings.read(query_string).query

    async def page(
        self, listing: Listing, *, counted: bool = True, budget: Budget | None = None, tx: Tx | None = None
    ) -> tuple[Sequence[Row], int]:
        """The rows of one page, and how many there are in all; a keyset page counts nothing.

        A row has its fields first; values that follow them belong to this class alone.
        """
        query, run = listing.query, executor(self.adapter, tx)
        versions = None if run.read_versions is None else versions_read(self.sql, run)
        if not counted:
            statement = listing.uncounted_rows(versioned=versions is not None)
        else:
            statement = listing.rows() if versions is None else listing.versioned_rows()
        rows: Sequence[Row] = await run.fetch(statement, budget)
        if query.cursor is not None or not counted:
            total = 0
        elif rows:
            total = rows[0][-1]
        elif query.page == 1:
            total = 0
        else:  # past the last page: the count had no row to ride on
            total = await self.count(query.filters, scope=query.forced, search=query.search, tx=tx)
        if versions is not None:
            place = next(i for i, f in enumerate(listing.fields) if f.name == "id")
            versions.note_rows(rows, place, len(listing.fields))
        if self.sql.asks_elsewhere:
            return await self._open_rows(listing.fields, rows, listing.decode_rows), total
        return (rows if listing.decode_rows is None else listing.decode_rows(rows)), total

    async def stream(
        self, query: Query, fields: tuple[FieldMeta, ...], most: int
    ) -> AsyncGenerator[Sequence[Row], None]:
        """These fields of all rows of a list, in batches and of one moment; in no transaction."""
        listing = self.listing(query.with_(page=1, limit=most, includes=(), select=fields))
        order = [listing.fields.index(f) for f in fields]
        async with aclosing(self.adapter.stream(listing.uncounted_rows())) as batches:
            async for rows in batches:
                decoded_rows = rows if listing.decode_rows is None else listing.decode_rows(rows)
                yield [[row[i] for i in order] for row in decoded_rows]

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
        """Rows of this model that a relation of `owner` leads to; the last value says from which key."""
        run = executor(self.adapter, tx)
        versions = versions_read(self.sql, run)
        with_version = versions is not None
        statement = select.related_rows(
            owner.sql, relation, self.sql, keys, scope, most, versioned=with_version
        )
        rows: Sequence[Row] = await run.fetch(statement, budget)
        if versions is not None:
            width, place = self._width, self.id_place
            versions.note_rows(rows, place, width)
            rows = [(*row[:width], row[-1]) for row in rows]
        if self.sql.asks_elsewhere:
            return await self._open_rows(self.meta.fields, rows, self.sql.decode_rows)
        return rows if self.sql.decode_rows is None else self.sql.decode_rows(rows)

    async def _open_rows(
        self,
        fields: Sequence[FieldMeta],
        rows: Sequence[Row],
        decode_rows: Callable[[Sequence[Row]], Sequence[Row]] | None,
    ) -> Sequence[Row]:
        """Rows of these fields; a key provider that is elsewhere is asked once for all of them."""
        cipher = self.sql.cipher
        if cipher is None or decode_rows is None:
            return rows
        pairs = cipher.sealed_values(fields, rows)
        with opened_ahead(await self.sql.keys.open_ahead(pairs)):
            return decode_rows(rows)

    async def count(
        self,
        filters: Sequence[Filter],
        *,
        scope: Scope = (),
        search: str | None = None,
        most: int | None = None,
        tx: Tx | None = None,
    ) -> int:
        statement = select.count(self.sql, filters, scope, search, most)
        row = await executor(self.adapter, tx).fetch_one(statement)
        return int(row[0]) if row is not None else 0

    async def search(
        self,
        text: str,
        limit: int,
        *,
        scope: Scope = (),
        budget: Budget | None = None,
        tx: Tx | None = None,
    ) -> Sequence[Row]:
        """Id, excerpt and score of the live rows that match best."""
        return await executor(self.adapter, tx).fetch(search.best(self.sql, text, limit, scope), budget)

    async def create(
        self, record: Model, *, scope: Scope = (), tx: Tx | None = None, guard: Guard | None = None
    ) -> Row:
        """Store a validated record as a new row and give the row back; what it refers to must exist.

        A guard is for a write that is a transaction of its own.
        """
        values = {**record.__dict__, "created_at": (now := self.clock.now()), "updated_at": now}
        self._indexed.check(values)
        references = await self.references.to_check(values, scope) if self.references is not None else ()
        if references or (scope and parent_keys(self.meta, scope)):
            statement = write.insert_referring(self.sql, values, references, scope)
        else:
            statement = write.insert(self.sql, values)
        try:
            if guard is not None or self.seam.listeners:
                row = await self.seam.create(statement, values, tx, guard)
                if row is None:
                    raise await self._dangling(references, values, scope, tx)
                return row
            rows = await executor(self.adapter, tx).write(statement)
        except ConstraintViolation as error:
            self._name_fields(error)
            raise
        if not rows:
            raise await self._dangling(references, values, scope, tx)
        return rows[0] if self.decode is None else self.decode(rows[0])

    def check_lengths(self, values: Mapping[str, Any]) -> None:
        """Refuse texts that are too long for the indexes they stand in."""
        self._indexed.check(values)

    async def provision(self, record: Model) -> Row | None:
        """Store the record unless there is one of that id already; the row, if it is new."""
        if not self.seam.listeners:
            return await self._provision(record)
        async with self.seam.transaction(None) as tx:
            row = await self._provision(record)
            if row is not None:
                await self.seam.tell(ChangeKind.CREATE, tx, record.id, after=row, source=Source.PROVISION)
            return row

    async def _provision(self, record: Model) -> Row | None:
        values = {**record.__dict__, "created_at": (now := self.clock.now()), "updated_at": now}
        run = executor(self.adapter)
        inserted_rows: Sequence[Row] = await run.write(write.insert(self.sql, values, ignore_existing=True))
        # Another record may have one of its unique values; the one that was deleted may not.
        if not inserted_rows and self.meta.soft_delete is None and await self.find(record.id) is None:
            inserted_rows = await self.execute_write(write.insert(self.sql, values), run)
        row = inserted_rows[0] if inserted_rows else None
        return row if row is None or self.decode is None else self.decode(row)

    def record(self, row: Row, fields: Sequence[FieldMeta] | None = None) -> Model:
        """The row as an instance of the model; with `fields`, of those attributes only."""
        names = self.sql.names if fields is None else [f.name for f in fields]
        return self.meta.cls._from_db(dict(zip(names, row, strict=False)))

    def link(
        self, models: Models, stores_by_model: StoresByModel, limits: Limits, *, must_bind: bool = False
    ) -> None:
        """The other models: those a query may name, and the stores of them all."""
        self.models = models
        self.stores_by_model = stores_by_model
        self.sql.link({name: s.sql for name, s in stores_by_model.items() if s.adapter is self.adapter})
        self.listings = Listings(self.sql, models, limits, must_bind=must_bind)
        self.references = References(self, stores_by_model) or None
        self.links = links_to(self, stores_by_model)

    async def update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        held: Row | None = None,
    ) -> Row:
        """Change fields of a live, unlocked row inside the scope; `held` is the row, if we hold its lock."""
        if self._indexed.can_change:
            self._indexed.check(changes)
        if tx is None and self.sql.cipher is not None and not self.sql.cipher.covers(changes):
            # A row whose other secrets do not open must not be written.
            async with transaction(self.adapter) as own_tx:
                return await self.update(record_id, changes, scope=scope, tx=own_tx, held=held)
        values = {**changes, "updated_at": self.clock.now()}
        references = await self.references.to_check(changes, scope) if self.references is not None else ()
        try:
            if self.seam.listeners:
                row = await self.seam.update(record_id, values, scope, references, tx, held)
                if row is not None:
                    return row
            else:
                run = executor(self.adapter, tx)
                rows = await self.write_update(record_id, values, scope, references, run, held)
                if rows:
                    return rows[0] if self.decode is None else self.decode(rows[0])
        except ConstraintViolation as error:
            self._name_fields(error)
            raise
        has_references = references or any(key in changes for key in parent_keys(self.meta, scope))
        dangling = await self._dangling(references, changes, scope, tx) if has_references else None
        raise await self.why_untouched(record_id, scope, tx, otherwise=dangling)

    def write_update(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        scope: Scope,
        references: CheckedReferences,
        run: Executor,
        held: Row | None,
    ) -> Awaitable[list[Row]]:
        """Run the statement of an update; on a row that we do not hold, only if it is as it was read here."""
        if run.read_versions is None or held is not None:
            return run.write(write.update(self.sql, record_id, changes, scope, references))
        return self._update_unchanged(record_id, changes, scope, references, run)

    # Apart, because the variables of a lambda make every call dearer.
    def _update_unchanged(
        self,
        record_id: str,
        changes: Mapping[str, Any],
        scope: Scope,
        references: CheckedReferences,
        run: Executor,
    ) -> Awaitable[list[Row]]:
        return write_unchanged(
            self.sql,
            record_id,
            run,
            lambda version: run.write(write.update(self.sql, record_id, changes, scope, references, version)),
        )

    async def revise(
        self,
        record_id: str,
        changes: dict[str, Any],
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        check: Callable[[Row], Awaitable[None] | None] | None = None,
    ) -> Row:
        """As `update`, but the row is looked at first, under its lock: by `check` and by its validators.

        `check` may add to the changes.
        """
        if tx is None:
            async with transaction(self.adapter) as own_tx:
                return await self.revise(record_id, changes, scope=scope, tx=own_tx, check=check)
        row = await self.lock_unchanged(record_id, tx=tx, scope=scope, changes=changes)
        refusal = self.lock_refusal(row)
        if refusal is not None:
            raise refusal
        if has_edits(changes):
            merge_edits(self.meta, self.sql.names, row, changes)
        if check is not None and (work := check(row)) is not None:
            await work
        values = self._merge(row, changes)
        if not values:
            return await self.note_unchanged(record_id, row, tx)
        return await self.update(record_id, values, scope=scope, tx=tx, held=row)

    async def note_unchanged(self, record_id: str, row: Row, tx: Tx | None = None) -> Row:
        """The row, of an update that has nothing to write; listeners are told of it all the same."""
        if self.seam.listeners:
            async with self.seam.transaction(tx) as own_tx:
                await self.seam.tell(ChangeKind.UPDATE, own_tx, record_id, before=row, after=row)
        return row

    def _merge(self, row: Row, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The changes as the model's own validators leave them."""
        validator = self.meta.validator
        if not changes or not validator.has_model_validators:
            return changes
        current = self.record(row)
        before, after = vars(current), vars(validator.merge(current, changes))
        return {n: after[n] for n in self.sql.names if n in changes or after[n] != before[n]}

    async def increment(
        self, record_id: str, deltas: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row:
        """Add to numeric fields so that concurrent additions all land and bounds hold."""
        if tx is None and self.sql.cipher is not None:
            async with transaction(self.adapter) as own_tx:
                return await self.increment(record_id, deltas, scope=scope, tx=own_tx)
        fields = self.meta.by_name
        is_update = any(fields[name].kind is Kind.DECIMAL for name in deltas if name in fields)
        if is_update or not self.seam.listeners:
            return await increment(self, record_id, deltas, scope, tx)
        async with self.seam.transaction(tx) as own_tx:
            before = await self.seam.images(own_tx, [record_id]) if self.seam.needs_rows else []
            row = await increment(self, record_id, deltas, scope, own_tx)
            held = before[0] if before else None
            await self.seam.tell(ChangeKind.UPDATE, own_tx, record_id, before=held, after=row)
            return row

    async def delete(self, record_id: str, *, scope: Scope = (), tx: Tx | None = None) -> None:
        """Remove the row, or mark it when the model deletes softly; see to those that refer to it."""
        stamps = {} if self.meta.soft_delete is None else deletion(self.meta, self.clock.now())
        if self.links or self.seam.listeners:
            if self.links or not await self.seam.delete_at_once(record_id, stamps, scope, tx):
                await remove(self, record_id, scope, tx)
            return
        run = executor(self.adapter, tx)
        row_count = await write_unchanged(
            self.sql,
            record_id,
            run,
            lambda version: run.execute(write.delete(self.sql, record_id, stamps, scope, version)),
        )
        if not row_count:
            raise await self.why_untouched(record_id, scope, tx)

    async def restore(
        self,
        record_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        scope: Scope = (),
        tx: Tx | None = None,
        check: Callable[[Row], Awaitable[None]] | None = None,
    ) -> Row:
        """Bring a soft-deleted row inside the scope back; what must not dangle has to be there.

        Deleted rows that it refers to and that refer to it in a circle come back with it.
        """
        if self.meta.soft_delete is None:
            raise DeclarationError(f"{self.meta.name} removes its rows; there is nothing to restore")
        if tx is None:
            async with transaction(self.adapter) as own_tx:
                return await self.restore(record_id, changes, scope=scope, tx=own_tx, check=check)
        if await hold_changed(self.sql, record_id, tx, live=False):
            refuse_changed(self.sql, [record_id], tx)
        stored_row = await tx.fetch_one(cascade.deleted_row(self.sql, record_id, scope))
        if stored_row is None:
            raise self._missing(record_id)
        row = stored_row if self.decode is None else self.decode(stored_row)
        if check is not None:
            await check(row)
        time_stamp = {"updated_at": self.clock.now()}
        stamps = {**(changes or {}), **undeletion(self), **time_stamp}
        self._indexed.check(stamps)
        values = {**dict(zip(self.sql.names, row, strict=True)), **stamps}
        references = self.references.to_keep(values) if self.references is not None else ()
        statement = cascade.restore(self.sql, record_id, stamps, references, values, scope)
        rows = await self.execute_write(statement, executor(self.adapter, tx))
        if not rows and self.references is not None:
            circle = await circle_of(self, values, scope, tx)
            if circle is None:
                raise await self.references.dangling(references, values, scope, tx)
            await bring_back(circle, time_stamp, tx)
            rows = await self.execute_write(statement, executor(self.adapter, tx))
        after = rows[0] if self.decode is None else self.decode(rows[0])
        if self.seam.listeners:
            await self.seam.tell(ChangeKind.RESTORE, tx, record_id, before=row, after=after)
        return after

    async def execute_write(self, statement: Sql, run: Executor) -> Sequence[Row]:
        """Run a write; a refused constraint names the fields as clients know them."""
        try:
            return await run.write(statement)
        except ConstraintViolation as error:
            self._name_fields(error)
            raise

    async def _dangling(
        self, references: CheckedReferences, values: Mapping[str, Any], scope: Scope, tx: Tx | None
    ) -> Exception:
        """The refusal of a write whose references were not all there, or not all inside the scope."""
        keys = [key for key in parent_keys(self.meta, scope) if key in values]
        if self.references is None:  # the record it belongs to comes from a query, and is not there
            return NotFound()
        return await self.references.dangling(references, values, scope, tx, scope_keys=keys)

    async def why_untouched(
        self, record_id: str, scope: Scope, tx: Tx | None, otherwise: Exception | None = None
    ) -> Exception:
        """Tell "not there" from "locked" and from "out of bounds", after a write touched nothing."""
        row = await executor(self.adapter, tx).fetch_one(select.one(self.sql, record_id, scope))
        if row is None:
            return self._missing(record_id)
        refusal = self.lock_refusal(row if self.decode is None else self.decode(row))
        return refusal or otherwise or self._missing(record_id)

    def _missing(self, record_id: str) -> NotFound:
        return NotFound(model=self.meta.name, record_id=record_id)

    def lock_refusal(self, row: Row) -> RecordLocked | None:
        """The refusal for a row in one of its `lock_when` states."""
        for lock in self.meta.locks:
            if row[self.sql.names.index(lock.field)] == lock.value:
                field = self.meta.by_name[lock.field]
                # Of a secret field neither the name nor the value is for clients.
                is_secret = field.secret or field in self.guarded
                why = None if is_secret else f"the record is locked while {field.api} is {lock.value!r}"
                return RecordLocked(why, model=self.meta.name, record_id=str(row[self.id_place]))
        return None


# Which fields of a model a constraint is about, as far as a client knows them.


class FieldsAtFault:
    """Names the fields of one model in errors about its constraints."""

    def __init__(self, meta: ModelMeta) -> None:
        self._table = meta.table
        self._visible_fields = {f.digest_column: f for f in meta.fields if not f.hidden}
        # What a value is unique within is the caller's own scope; only the value is at fault.
        self._within = {
            (*(meta.by_name[name].column for name in f.unique_within), f.digest_column): (f.digest_column,)
            for f in meta.fields
        }

    def name_in(self, error: ConstraintViolation) -> None:
        """Say which fields are meant, unless the error says so already or no client knows them."""
        # A statement may write more than the row, such as a version of its history.
        if error.details is None and error.columns and error.table in ("", self._table):
            columns = self._within.get(error.columns, error.columns)
            names = [self._visible_fields[c].api for c in columns if c in self._visible_fields]
            error.details = [{"field": name, "message": error.message} for name in names] or None


# How long a text in an index may be, which no database says in the same way: PostgreSQL refuses a long
# one by how well it can be compressed, SQLite never does. Here it is one limit, and the field is named.


class IndexedTexts:
    """The limits of one model's texts, known before the first write."""

    def __init__(self, meta: ModelMeta) -> None:
        limits = {} if meta.options.query is not None else longest_indexed(meta)
        # A character has four bytes at the most, so short texts need not be looked at.
        self._limits = tuple((name, most // 4, most) for name, most in limits.items())
        self.can_change = any(name != "id" for name in limits)
        self._meta = meta

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse values that are too long for the indexes they stand in."""
        for name, surely_fits, most in self._limits:
            value = values.get(name)
            if value is not None and len(value) > surely_fits and _size(value) > most:
                raise self._refusal(values)

    def _refusal(self, values: Mapping[str, Any]) -> ValidationFailed:
        too_long = [
            (self._meta.by_name[name], most)
            for name, _, most in self._limits
            if values.get(name) is not None and _size(values[name]) > most
        ]
        details = [
            detail(field.api, "index_length", f"must have at most {most} bytes, because it is indexed")
            for field, most in too_long
            if not field.hidden
        ]
        return ValidationFailed(details=details or None)


def _size(value: str | bytes) -> int:
    return len(value if isinstance(value, bytes) else value.encode())


# Additions to numeric fields of a row, so that concurrent ones all land and declared bounds hold.


async def increment(
    store: Store, record_id: str, deltas: Mapping[str, Any], scope: Scope, tx: Tx | None
) -> Row:
    """Add to the fields of a live row inside the scope; `ValidationFailed` where a sum leaves its bounds."""
    _check_deltas(store.meta, deltas)
    run = executor(store.adapter, tx)
    # It adds to the row as it is now; that makes an earlier read of the row no fresher.
    is_stale = await hold_changed(store.sql, record_id, run)
    try:
        if any(store.meta.by_name[name].kind is Kind.DECIMAL for name in deltas):
            return await _increment_decimal(store, record_id, deltas, scope, tx)
        return await _increment_number(store, record_id, deltas, scope, tx)
    finally:
        if is_stale:
            mark_changed(store.sql, [record_id], run)


async def _increment_number(
    store: Store, record_id: str, deltas: Mapping[str, Any], scope: Scope, tx: Tx | None
) -> Row:
    stamps = {"updated_at": store.clock.now()}
    out_of_bounds = _out_of_bounds(store.meta, record_id, deltas)
    try:
        statement = write.increment(store.sql, record_id, deltas, stamps, scope)
        rows = await store.execute_write(statement, executor(store.adapter, tx))
    except ValidationFailed as error:  # beyond what the column holds
        raise out_of_bounds from error
    if not rows:
        raise await store.why_untouched(record_id, scope, tx, otherwise=out_of_bounds)
    return rows[0] if store.decode is None else store.decode(rows[0])


async def _increment_decimal(
    store: Store, record_id: str, deltas: Mapping[str, Any], scope: Scope, tx: Tx | None
) -> Row:
    # SQLite would add decimals as floats, so the sum is made here, under the row's lock.
    if tx is None:
        async with transaction(store.adapter) as own_tx:
            return await _increment_decimal(store, record_id, deltas, scope, own_tx)
    row = await store.lock(record_id, tx=tx, scope=scope)
    now = dict(zip(store.sql.names, row, strict=True))
    if any(now[name] is None for name in deltas):
        raise _out_of_bounds(store.meta, record_id, deltas)
    sums = {name: now[name] + type(now[name])(str(delta)) for name, delta in deltas.items()}
    changes = store.meta.validator.patch_from_code(sums)
    return await store.update(record_id, changes, scope=scope, tx=tx)


def _out_of_bounds(meta: ModelMeta, record_id: str, deltas: Mapping[str, Any]) -> ValidationFailed:
    message = "is null or would leave its bounds"
    details = [{"field": name, "message": message} for name in deltas]
    return ValidationFailed(details=details, model=meta.name, record_id=record_id)


def _check_deltas(meta: ModelMeta, deltas: Mapping[str, Any]) -> None:
    for name, delta in deltas.items():
        field = meta.by_name.get(name)
        if field is None or field.kind not in (Kind.INT, Kind.FLOAT, Kind.DECIMAL):
            raise _invalid(meta, name, "not a numeric field")
        number = isinstance(delta, int | float | Decimal) and not isinstance(delta, bool)
        if not number or not (isinstance(delta, int) or math.isfinite(delta)):
            raise _invalid(meta, name, "must be a number")
        if field.kind is Kind.INT and not isinstance(delta, int):
            raise _invalid(meta, name, "must be a whole number")


def _invalid(meta: ModelMeta, name: str, message: str) -> ValidationFailed:
    return ValidationFailed(details=[{"field": name, "message": message}], model=meta.name)
