"""The records of a person and everything beside them that repeats their values: versions, audit, files.

A batch of records is one transaction with their versions, their records of audit trails and their files.
What is done already looks done (a field has its erased value, a version its `erased_at`), so a pass that
was killed begins anew and counts nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from maniflex._clock import Clock
from maniflex._json import encode_json
from maniflex.background.parameters import parameters_of
from maniflex.db.cascade import remove_all
from maniflex.db.current import Primary
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.db.redacted import same_json
from maniflex.db.store import Store
from maniflex.db.write_seam import ChangeKind
from maniflex.erasure.plan import SubjectModel, Treatment
from maniflex.erasure.statements import bind, filled_in, json_text
from maniflex.files.store import FileStore
from maniflex.model.field import file_fields
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql import cascade as cascade_sql
from maniflex.sql.statement import by_dialect
from maniflex.sql.tables import find_table

BATCH = 200
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")
_NOTHING = {"history": b'{"old":null,"new":null}', "audit": b'{"from":null,"to":null}'}


@dataclass(slots=True)
class ErasedBatch:
    """What one batch came to."""

    counts: Counter[str] = field(default_factory=Counter)  # rows by table
    held: list[tuple[str, str]] = field(default_factory=list)  # model and id
    kept: Counter[str] = field(default_factory=Counter)  # records by model
    restricted: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: ErasedBatch) -> None:
        self.counts.update(other.counts)
        self.held += other.held
        self.kept.update(other.kept)
        self.restricted += other.restricted


class RecordEraser:
    """Finds the records of one person and erases them, or counts what it would erase."""

    def __init__(
        self, subject: str, plan: Sequence[SubjectModel], files: FileStore | None, clock: Clock
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._files = files
        self._clock = clock
        self._has_audit: dict[int, bool] = {}  # by database

    # -- finding

    async def ids_of(self, one: SubjectModel) -> list[str]:
        """The ids of the records of a model that are the person's, deleted ones too."""
        stores = [one.store]
        for relation in one.path:
            stores.append(stores[-1].stores_by_model[relation.target])
        ids = await self._naming(stores[-1], one.field, [self._subject])
        for store, child, relation in zip(stores[:0:-1], stores[-2::-1], one.path[::-1], strict=True):
            past = [other for other in self._plan if other.store is store]
            parents = {*ids, *[id for other in past for id in await self.past_ids(other)]}
            ids = await self._naming(child, child.meta.by_name[relation.key or ""], sorted(parents))
        return ids

    async def past_ids(self, one: SubjectModel) -> list[str]:
        """The ids of records that were the person's by their versions, whether they are there or not."""
        if one.history is None:
            return []
        if one.field.name == "id" and not one.path:
            return [self._subject]
        condition = await self._named_in_versions(one)
        if condition is None:
            return []
        history, text = one.history, "SELECT DISTINCT record_id FROM {history} WHERE "
        text = filled_in(text, history.sql.dialect, {"history": history.meta.table}) + condition[0]
        rows = await Primary(history.adapter).fetch(bind(text, history.sql.dialect, keys=condition[1]))
        return sorted(row[0] for row in rows)

    async def _naming(self, store: Store, key: FieldMeta, values: list[str]) -> list[str]:
        names = {"table": store.meta.table, "id": store.meta.by_name["id"].column, "key": key.column}
        text = filled_in(
            "SELECT {id} FROM {table} WHERE {key} AMONG(:keys) ORDER BY {id}", store.sql.dialect, names
        )
        rows = await Primary(store.adapter).fetch(bind(text, store.sql.dialect, keys=values))
        return [row[0] for row in rows]

    async def _keys(self, one: SubjectModel) -> list[str]:
        """The values of the key of a record that lead to the person."""
        if not one.path:
            return [self._subject]
        target = one.store.stores_by_model[one.path[0].target]
        shorter = SubjectModel(target, None, one.path[1:], one.field, one.treatment, ())
        past = [other for other in self._plan if other.store is target]
        return sorted(
            {*await self.ids_of(shorter), *[id for other in past for id in await self.past_ids(other)]}
        )

    async def _named_in_versions(self, one: SubjectModel) -> tuple[str, list[str]] | None:
        """The condition that a version names the person, and the keys it looks for."""
        key = one.key
        if key.name == "id":
            return "record_id AMONG(:keys)", [self._subject]
        if key.secret or one.history is None:
            return None
        dialect = one.history.sql.dialect
        texts = [json_text(dialect, "snapshot", key.api), json_text(dialect, "diff", key.api, "new")]
        texts.append(json_text(dialect, "diff", key.api, "old"))
        return f"({' OR '.join(f'{text} AMONG(:keys)' for text in texts)})", await self._keys(one)

    # -- live records

    async def erase_batch(self, one: SubjectModel, ids: Sequence[str], tx: Tx) -> ErasedBatch:
        """Erase these records with what repeats them; `DeleteRestricted` where others keep one from going."""
        rows = await one.store.seam.images(tx, ids)
        outcome, fitting = self.judge(one, rows)
        erasable_ids = [row[one.store.sql.names.index("id")] for row in fitting]
        if not erasable_ids:
            return outcome
        keys = list(self._file_keys(one, fitting))
        if one.treatment is Treatment.DELETE:
            await remove_all(one.store, erasable_ids, tx, self._clock.now(), physically=True)
            outcome.counts[one.meta.table] += len(erasable_ids)
        else:
            outcome.counts[one.meta.table] += await self._anonymise(one, fitting, tx)
        await self._erase_beside(one, erasable_ids, keys, tx, outcome)
        return outcome

    async def anonymise_batch(self, one: SubjectModel, ids: Sequence[str], tx: Tx) -> ErasedBatch:
        """Anonymise records that should be deleted and that others need."""
        model = SubjectModel(one.store, one.history, one.path, one.field, Treatment.ANONYMISE, one.personal)
        outcome = await self.erase_batch(model, ids, tx)
        outcome.restricted += [(one.meta.name, record_id) for record_id in ids]
        return outcome

    async def count_batch(self, one: SubjectModel, ids: Sequence[str]) -> ErasedBatch:
        """What `erase_batch` would come to; nothing is changed."""
        run = Primary(one.store.adapter)
        stored_rows = await run.fetch(cascade_sql.rows(one.store.sql, ids, locked=False))
        rows = stored_rows if one.store.decode is None else [one.store.decode(row) for row in stored_rows]
        outcome, fitting = self.judge(one, rows)
        erasable_ids = [row[one.store.sql.names.index("id")] for row in fitting]
        if one.treatment is Treatment.DELETE:
            outcome.counts[one.meta.table] += len(erasable_ids)
        else:
            outcome.counts[one.meta.table] += sum(bool(self._changes(one, row)) for row in fitting)
        outcome.counts.update({t: len(r) for t, r in (await self._beside(one, erasable_ids, run)).items()})
        if self._files is not None:
            keys = list(self._file_keys(one, fitting))
            outcome.counts["stored_file"] += await self._count_files(keys, erasable_ids)
        return outcome

    def judge(self, one: SubjectModel, rows: Iterable[Row]) -> tuple[ErasedBatch, list[Row]]:
        """The rows that may be erased, and what is said of the others."""
        outcome, fitting = ErasedBatch(), []
        names = one.store.sql.names
        hold = None if one.meta.hold is None else names.index(one.meta.hold)
        for row in rows:
            if one.treatment is Treatment.KEEP:
                outcome.kept[one.meta.name] += 1
            elif hold is not None and row[hold]:
                outcome.held.append((one.meta.name, row[names.index("id")]))
            else:
                fitting.append(row)
        return outcome, fitting

    async def _anonymise(self, one: SubjectModel, rows: Sequence[Row], tx: Tx) -> int:
        """Write the erased values over the personal ones; how many records had any."""
        store, now = one.store, self._clock.now()
        id_place = store.sql.names.index("id")
        rows_to_change = [row for row in rows if self._changes(one, row)]
        groups = [rows_to_change] if one.is_alike else [[row] for row in rows_to_change]
        for group in groups if rows_to_change else ():
            values = {**one.erased_values(group[0][id_place]), "updated_at": now}
            await tx.execute(cascade_sql.stamp(store.sql, [row[id_place] for row in group], values))
            if store.seam.needs_rows:
                stamps = {n: _as_stored(one.meta.by_name[n], value) for n, value in values.items()}
                await store.seam.tell_rows(ChangeKind.UPDATE, tx, group, stamps)
            else:
                await store.seam.tell(ChangeKind.UPDATE, tx)
        return len(rows_to_change)

    def _changes(self, one: SubjectModel, row: Row) -> bool:
        """Whether a personal field has another value than its erased one."""
        names = one.store.sql.names
        replacements = one.erased_values(row[names.index("id")])
        return any(
            not _is_same(one.meta.by_name[name], row[names.index(name)], value)
            for name, value in replacements.items()
        )

    # -- beside the records

    async def _erase_beside(
        self, one: SubjectModel, ids: Sequence[str], keys: Sequence[str], tx: Tx, outcome: ErasedBatch
    ) -> None:
        rows = await self._beside(one, ids, tx)
        for table, rows_by_table in rows.items():
            outcome.counts[table] += len(rows_by_table)
            await self._scrub(one, table, rows_by_table, tx)
        if one.treatment is Treatment.DELETE and one.history is not None:  # the version of the delete itself
            text = filled_in(
                "DELETE FROM {t} WHERE record_id AMONG(:ids)", tx.dialect, self._history_name(one)
            )
            await tx.execute(bind(text, tx.dialect, ids=list(ids)))
        if self._files is not None and keys:
            outcome.counts["stored_file"] += await self._give_up_files(keys, tx)

    async def _beside(
        self, one: SubjectModel, ids: Sequence[str], run: Executor | Primary
    ) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """Versions and records of audit trails that have values of these records: id and new columns."""
        rows_by_table: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        if one.history is not None and ids:
            versions = [row async for row in self._versions(one, "record_id AMONG(:keys)", ids, run)]
            is_sure = one.path or one.key.name == "id" or one.treatment is Treatment.DELETE
            foreign = set() if is_sure else {self._subject}
            rows_by_table[one.history.meta.table] = [
                (row[0], self._scrubbed_version(one, row))
                for row in versions
                if not foreign or _is_about(row, one.key.api, foreign)
            ]
        if ids and await self._keeps_audit(one.store.adapter):
            rows_by_table["audit_log"] = await self._audit_rows(
                one, "resource_id AMONG(:keys)", list(ids), run
            )
        return {table: rows for table, rows in rows_by_table.items() if rows}

    async def leftovers(
        self, one: SubjectModel, run: Executor | Primary, without: Sequence[str]
    ) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """The same of records that are gone, by what their versions and records say."""
        rows_by_table: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        condition = await self._named_in_versions(one)
        keys = None if condition is None else condition[1]
        if one.history is not None and condition is not None:
            versions = [row async for row in self._versions(one, condition[0], condition[1], run)]
            rows_by_table[one.history.meta.table] = [
                (row[0], self._scrubbed_version(one, row)) for row in versions if row[1] not in without
            ]
        if await self._keeps_audit(one.store.adapter) and not one.key.secret:
            if one.key.name == "id":
                condition_of_audit = "resource_id AMONG(:keys)"
            else:
                condition_of_audit = f"{json_text(run.dialect, 'result', one.key.api)} AMONG(:keys)"
            keys = [self._subject] if one.key.name == "id" else keys or await self._keys(one)
            rows_by_table["audit_log"] = [
                row
                for row in await self._audit_rows(one, condition_of_audit, keys, run)
                if row[1]["resource_id"] not in without
            ]
        return {table: rows for table, rows in rows_by_table.items() if rows}

    async def scrub_leftovers(self, one: SubjectModel, tx: Tx, without: Sequence[str]) -> ErasedBatch:
        """Scrub what is left of records that are gone."""
        outcome = ErasedBatch()
        for table, rows in (await self.leftovers(one, tx, without)).items():
            outcome.counts[table] += len(rows)
            await self._scrub(one, table, rows, tx)
        return outcome

    async def _versions(
        self, one: SubjectModel, condition: str, keys: Sequence[str], run: Executor | Primary
    ) -> AsyncIterator[Row]:
        text = "SELECT id, record_id, diff, snapshot FROM {t} WHERE erased_at IS NULL AND source <> 'erasure'"
        text = f"{filled_in(text, run.dialect, self._history_name(one))} AND {condition} ORDER BY id"
        for row in await run.fetch(bind(text, run.dialect, keys=list(keys))):
            yield row

    def _history_name(self, one: SubjectModel) -> dict[str, str]:
        assert one.history is not None
        return {"t": one.history.meta.table}

    def _scrubbed_version(self, one: SubjectModel, row: Row) -> dict[str, Any]:
        _, _, diff, snapshot = row
        return {
            "diff": _scrub_object(diff, one.names, msgspec.Raw(_NOTHING["history"])),
            "snapshot": _scrub_object(snapshot, one.names, _NULL),
        }

    async def _audit_rows(
        self, one: SubjectModel, condition: str, keys: list[str], run: Executor | Primary
    ) -> list[tuple[str, dict[str, Any]]]:
        text = (
            "SELECT id, resource_id, result, changes FROM audit_log"
            f" WHERE model = :model AND source <> 'erasure' AND {condition} ORDER BY id"
        )
        rows_by_table = []
        for record_id, resource_id, result, changes in await run.fetch(
            bind(text, run.dialect, model=one.meta.name, keys=keys)
        ):
            columns = {
                "result": _scrub_object(result, one.names, _NULL),
                "changes": _scrub_object(changes, one.names, msgspec.Raw(_NOTHING["audit"])),
            }
            if (columns["result"], columns["changes"]) != (_text(result), _text(changes)):
                rows_by_table.append((record_id, {**columns, "resource_id": resource_id}))
        return rows_by_table

    async def _scrub(
        self, one: SubjectModel, table: str, rows: Sequence[tuple[str, dict[str, Any]]], tx: Tx
    ) -> None:
        dialect, json = tx.dialect, by_dialect(tx.dialect, sqlite="{}", postgres="CAST({} AS json)")
        if table != "audit_log" and one.treatment is Treatment.DELETE:
            text = filled_in("DELETE FROM {t} WHERE id AMONG(:ids)", dialect, {"t": table})
            await tx.execute(bind(text, dialect, ids=[row[0] for row in rows]))
            return
        if table == "audit_log":
            columns, more = ("result", "changes"), ""
        else:
            columns, more = ("diff", "snapshot"), ", erased_at = :now"
        assignments = ", ".join(f"{name} = {json.format(f':{name}')}" for name in columns)
        text = filled_in(f"UPDATE {{t}} SET {assignments}{more} WHERE id = :id", dialect, {"t": table})
        moment = {"now": parameters_of(dialect).time(self._clock.now())} if more else {}
        await tx.batch(
            [bind(text, dialect, id=id, **{n: row[n] for n in columns}, **moment) for id, row in rows]
        )

    async def _keeps_audit(self, adapter: Adapter) -> bool:
        """Whether the database of a model has the table of an audit trail."""
        if id(adapter) not in self._has_audit:
            row = await Primary(adapter).fetch_one(find_table("audit_log", adapter.dialect))
            self._has_audit[id(adapter)] = row is not None
        return self._has_audit[id(adapter)]

    # -- files

    def _file_keys(self, one: SubjectModel, rows: Iterable[Row]) -> Iterable[str]:
        """The keys in personal fields of the records, in all fields where the records go."""
        names = one.store.sql.names
        for f, _ in file_fields(one.meta):
            if f.personal or one.treatment is Treatment.DELETE:
                for row in rows:
                    value = row[names.index(f.name)]
                    if f.kind is Kind.JSON:
                        items = _read_json(value) if isinstance(value, str | bytes) else value
                        yield from (key for key in items or () if isinstance(key, str))
                    elif value is not None:
                        yield value

    async def _give_up_files(self, keys: Sequence[str], tx: Tx) -> int:
        """Condemn the files that no record names any more, and forget what they were called."""
        assert self._files is not None
        await self._files.condemn(keys, self._clock.now(), tx)
        text = "UPDATE stored_file SET filename = '' WHERE state = 'condemned' AND key AMONG(:keys)"
        return await tx.execute(bind(text, tx.dialect, keys=sorted(set(keys))))

    async def _count_files(self, keys: Sequence[str], record_ids: Sequence[str]) -> int:
        """How many of the files no other record names."""
        assert self._files is not None
        run = Primary(self._files.adapter)
        text = (
            "SELECT count(*) FROM stored_file WHERE key AMONG(:keys) AND NOT EXISTS"
            " (SELECT 1 FROM file_link l WHERE l.key = stored_file.key AND NOT l.record_id AMONG(:ids))"
        )
        row = await run.fetch_one(bind(text, run.dialect, keys=sorted(set(keys)), ids=list(record_ids)))
        return 0 if row is None else int(row[0])


def _is_about(version: Row, name: str, keys: set[str]) -> bool:
    """Whether a version names the person, or nobody: the record may have been another's before."""
    _, _, diff, snapshot = version
    people = []
    for text, sides in ((snapshot, None), (diff, ("old", "new"))):
        values = _read_json(text) if isinstance(text, str | bytes) else text or {}
        value = values.get(name)
        people += (
            [value] if sides is None or not isinstance(value, Mapping) else [value.get(s) for s in sides]
        )
    ids_told = {value for value in people if isinstance(value, str)}
    return not ids_told or bool(ids_told & keys)


def _scrub_object(stored: Any, names: frozenset[str], nothing: msgspec.Raw) -> str | None:
    """The JSON object with nothing under these names."""
    text = _text(stored)
    if text is None:
        return None
    values = _read_object(text)
    if not names & values.keys():
        return text
    return _write_json({n: nothing if n in names else value for n, value in values.items()}).decode()


def _text(stored: Any) -> str | None:
    return stored.decode() if isinstance(stored, bytes) else stored


def _as_stored(f: FieldMeta, value: Any) -> Any:
    """A value as rows have it, where JSON is text."""
    return encode_json(value) if f.kind is Kind.JSON and value is not None else value


def _is_same(f: FieldMeta, stored: Any, value: Any) -> bool:
    if stored is None or value is None:
        return stored is value
    if f.kind is Kind.JSON:
        return same_json(_read_json(stored), _read_json(encode_json(value)))
    return bool(stored == value)
