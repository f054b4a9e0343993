"""`server.keys`: rotating the keys of encrypted fields, and what is stored under which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from maniflex.app.encryption import encrypted_fields, forget_note
from maniflex.background.sealed_rows import SealedRows
from maniflex.db.port import Adapter
from maniflex.db.records import Records
from maniflex.db.rotation import (
    Goal,
    KeyRotation,
    Rotator,
    check_digests,
    count_keys,
    count_values,
    forget_values,
    plain_cipher,
)
from maniflex.db.store import Store
from maniflex.encryption.envelope import head_of
from maniflex.encryption.rotation import KeyCount, RotationReport
from maniflex.erasure.disk import rewrite
from maniflex.errors import DeclarationError, NotFound
from maniflex.model.base import Model
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.runtime import Runtime
from maniflex.schema.read import read_indexes
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import index_name, quote

ModelName = type[Model] | str
ROTATE_RUN = "maniflex.keys.rotate"


class ServerKeys:
    """The keys of one server: `server.keys`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys = runtime.keys

    async def status(self, *models: ModelName, work: bool = False) -> list[KeyCount]:
        """How many values each encrypted field, and with `work` durable work, has under each key."""
        counts: list[KeyCount] = []
        for store in self._stores(models):
            for cipher in () if store.sql.cipher is None else store.sql.cipher.fields.values():
                counts += await count_keys(store.adapter, store.meta, cipher.field, self._keys)
                counts += await self._count_old_texts(store, cipher.field)
        for store in self._work_stores() if work else ():
            counts += await SealedRows(store, self._keys).count()
        return counts

    async def _count_old_texts(self, store: Store, field: FieldMeta) -> list[KeyCount]:
        """The rows of histories and audit trails that tell texts from before the field was encrypted."""
        counts = []
        for adapter, table, columns, condition in self._places_of_texts(store):
            count = await count_values(adapter, table, columns, _names_of([field]), condition)
            if count:
                counts.append(KeyCount(store.meta.name, field.name, "", 0, count, False, place=table))
        return counts

    def _places_of_texts(self, store: Store) -> list[tuple[Adapter, str, Sequence[str], str]]:
        """Where values of a model are told besides: database, table, columns, and which rows."""
        places: list[tuple[Adapter, str, Sequence[str], str]] = []
        if is_versioned(store.meta.options):
            history = self._runtime.stores[history_model(store.meta.cls)]
            places.append((history.adapter, history.meta.table, ("diff", "snapshot"), "1 = 1"))
        for one in self._runtime.stores.values():
            if one.meta.table == "audit_log":
                of_model = f"model = '{store.meta.name}'"
                places.append((one.adapter, "audit_log", ("result", "changes"), of_model))
        return places

    def _work_stores(self) -> list[Store]:
        """The tables of durable work that may hold sealed values."""
        return [store for store in self._runtime.stores.values() if hasattr(store.meta.cls, "__sealed__")]

    async def rotate_work(
        self,
        old: str | None = None,
        new: str | None = None,
        *,
        dry_run: bool = False,
        on_rows: Callable[[int], None] | None = None,
    ) -> list[RotationReport]:
        """As `rotate`, of what runs and messages hold; jobs in Redis or NATS stay as they are."""
        if new is not None and (problems := await self._keys.problems_of_exactly(new)):
            raise DeclarationError(*(f"the key to write under: {problem}" for problem in problems))
        return [
            await SealedRows(store, self._keys).rotate(old, new, dry_run=dry_run, on_rows=on_rows)
            for store in self._work_stores()
        ]

    async def check(self, *models: ModelName) -> list[RotationReport]:
        """Open every value and compare every digest; nothing is written."""
        return [await self.rotate(store.meta.cls, dry_run=True) for store in self._stores(models)]

    async def rotate(
        self,
        model: ModelName,
        old: str | None = None,
        new: str | None = None,
        *,
        page_size: int = 100,
        after_id: str | None = None,
        dry_run: bool = False,
        plaintext: bool = False,
        on_rows: Callable[[int], None] | None = None,
    ) -> RotationReport:
        """Write what is not under the current key of its field under that key; all rows are opened before.

        `old` leaves other keys alone, `new` names the key to write under, `plaintext` also encrypts texts
        from before. A call that was ended goes on where it was.
        """
        store = self._runtime.store(model)
        if store.sql.cipher is None:
            raise DeclarationError(f"{store.meta.name} has no encrypted fields")
        if old == "":
            raise DeclarationError("old: name the key whose values are written anew")
        if new is not None and (problems := await self._keys.problems_of_exactly(new)):
            raise DeclarationError(*(f"the key to write under: {problem}" for problem in problems))
        goals = []
        for cipher in store.sql.cipher.fields.values():
            head = head_of(self._keys.current_key(cipher.key_id) if new is None else new)
            goals.append(Goal(cipher, head, old, plaintext))
        check_digests(store.meta, goals, self._keys)
        report = await self._run(store, goals, page_size, after_id, dry_run, on_rows)
        if plaintext and report.complete and not dry_run:
            report = replace(report, notes=tuple(await self._forget_texts(store, goals)))
        return report

    async def decrypt(
        self,
        model: ModelName,
        field: str,
        *,
        label: str | None = None,
        page_size: int = 100,
        on_rows: Callable[[int], None] | None = None,
    ) -> RotationReport:
        """Write the values of a field that is not encrypted any more as plain text."""
        store = self._runtime.store(model)
        item = store.meta.field(field)
        if item is None or item.encrypted is not None:
            why = "is encrypted: take encrypted= away first" if item is not None else "is no field"
            raise DeclarationError(f"{store.meta.name}.{field} {why}")
        goals = [Goal(plain_cipher(store.meta, item, self._keys, label), None)]
        report = await self._run(store, goals, page_size, None, False, on_rows)
        if report.complete:
            await forget_note(self._runtime.adapter, f"{store.meta.table}.{item.column}")
        return report

    def _stores(self, models: Sequence[ModelName]) -> list[Store]:
        if models:
            return [self._runtime.store(model) for model in models]
        names = {meta.name for meta, _ in encrypted_fields(self._runtime.models.values())}
        return [store for store in self._runtime.stores.values() if store.meta.name in names]

    async def _run(
        self,
        store: Store,
        goals: Sequence[Goal],
        page_size: int,
        after_id: str | None,
        dry_run: bool,
        on_rows: Callable[[int], None] | None,
    ) -> RotationReport:
        rotator = Rotator(store, self._keys, goals, on_rows)
        is_noted = not dry_run and after_id is None and self._runtime.find_store("KeyRotation") is not None
        progress = await self._progress(store, rotator.goal) if is_noted else None
        after = after_id if progress is None else progress.last_id
        report = RotationReport(store.meta.name, last_id=after)
        total, stale, failures = await rotator.preflight(after)
        report = replace(report, total=total, failures=tuple(failures))
        if failures or dry_run:
            return replace(report, skipped=total - stale, complete=not failures and not stale)
        before = rotated = 0 if progress is None else progress.rotated

        async def note(last_id: str, written: int) -> None:
            nonlocal rotated, after
            rotated, after = rotated + written, last_id
            if progress is not None:
                with suppress(NotFound):  # the same rotation, by another process, has come to its end
                    await self._rows.update(progress.id, last_id=last_id, rotated=rotated)

        async for wrong in rotator.rotate(after, page_size, note):
            failures += wrong
        is_complete = not failures and not await rotator.has_stale_rows()
        if progress is not None:
            with suppress(NotFound):
                if is_complete:
                    await self._rows.delete(progress.id)
                else:  # rows that were left are looked at by the next call
                    await self._rows.update(progress.id, last_id=None)
        self._keys.opened.forget()
        return replace(
            report,
            rotated=rotated,
            skipped=total - rotated + before,
            failures=tuple(failures),
            last_id=after,
            complete=is_complete,
        )

    @property
    def _rows(self) -> Records[KeyRotation]:
        return Records(self._runtime.store(KeyRotation))

    async def _progress(self, store: Store, goal: str) -> KeyRotation:
        """The row of this rotation: that of an earlier call, if it was ended."""
        rows = await self._rows.list({"model": store.meta.name})
        for row in rows:
            if row.goal == goal:
                return row
            with suppress(NotFound):
                await self._rows.delete(row.id)
        return await self._rows.create(model=store.meta.name, goal=goal)

    async def _forget_texts(self, store: Store, goals: Sequence[Goal]) -> list[str]:
        """Take the texts out of what was written before the fields were encrypted."""
        notes, adapter = [], store.adapter
        fields = [goal.cipher.field for goal in goals]
        touched = [store.meta.table]
        for database, table, columns, condition in self._places_of_texts(store):
            count = await forget_values(database, table, columns, _names_of(fields), condition)
            notes.append(f"{count} {'row' if count == 1 else 'rows'} of {table} lost the values")
            touched += [table] if database is adapter else []
        tables = {one.meta.table: one.adapter for one in self._runtime.stores.values()}
        if "cache_entry" in tables:
            await tables["cache_entry"].execute(Sql("DELETE FROM cache_entry"))
        if "idempotency_key" in tables:
            await tables["idempotency_key"].execute(_forget_answers(tables["idempotency_key"].dialect))
            notes.append("answers of idempotency keys from before are not given again")
            if tables["idempotency_key"] is adapter:
                touched.append("idempotency_key")
        notes += await self._drop_old_indexes(store)
        models = [one.sql for one in self._runtime.stores.values() if one.adapter is adapter]
        notes += await rewrite(adapter, models, touched)
        return notes

    async def _drop_old_indexes(self, store: Store) -> list[str]:
        """Drop the unique indexes of texts, which those of digests take the place of."""
        notes, adapter = [], store.adapter
        existing = await read_indexes(adapter, store.sql)
        for field in store.meta.fields:
            if not (field.has_digest and field.unique):
                continue
            within = (store.meta.by_name[name].column for name in field.unique_within)
            name = index_name("uq", store.meta.table, *within, field.column)
            if name in existing:
                await adapter.execute(Sql(f"DROP INDEX {quote(name, adapter.dialect)}"))
                notes.append(f"dropped the index {name} of texts")
        return notes


def _names_of(fields: Sequence[FieldMeta]) -> list[str]:
    """The names under which JSON may have values of these fields."""
    return list(dict.fromkeys(name for f in fields for name in (f.api, f.name, f.column)))


def _forget_answers(dialect: Dialect) -> Sql:
    """Let no kept answer be given again that was not sealed."""
    is_plain = by_dialect(
        dialect,
        sqlite="substr(answer, 1, 4) <> x'656e633a'",
        postgres="substring(answer from 1 for 4) <> '\\x656e633a'::bytea",
    )
    return Sql(f"UPDATE idempotency_key SET answer = NULL WHERE answer IS NOT NULL AND {is_plain}")
