"""The records of a person and everything beside them that repeats their values: versions, audit, files.

A batch of records is one transaction with their versions, their records of audit trails and their files.
What is done already looks done (a field has its erased value, a version its `erased_at`), so a pass that
was killed begins anew and counts nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from maniflex._clock import Clock
from maniflex._json import encode_json
from maniflex.db.cascade import remove_all
from maniflex.db.current import Primary
from maniflex.db.port import Row, Tx
from maniflex.db.redacted import same_json
from maniflex.db.store import Store
from maniflex.db.write_seam import ChangeKind
from maniflex.erasure.foreseeing import Foreseen
from maniflex.erasure.ownership import Ownership
from maniflex.erasure.past import PastEraser
from maniflex.erasure.plan import SubjectModel, Treatment
from maniflex.erasure.statements import bind
from maniflex.files.store import FileStore, Link
from maniflex.model.field import file_fields
from maniflex.model.meta import FieldMeta, Kind, OnDelete
from maniflex.sql import cascade as cascade_sql

BATCH = 200
_read_json = msgspec.json.Decoder().decode


@dataclass(slots=True)
class ErasedBatch:
    """What one batch came to."""

    counts: Counter[str] = field(default_factory=Counter)  # rows by table
    held: list[tuple[str, str]] = field(default_factory=list)  # model and id
    kept: Counter[str] = field(default_factory=Counter)  # records by model
    restricted: list[tuple[str, str]] = field(default_factory=list)
    freed: list[Link] = field(default_factory=list)  # of files, as far as they are counted alone

    def add(self, other: ErasedBatch) -> None:
        self.counts.update(other.counts)
        self.held += other.held
        self.kept.update(other.kept)
        self.restricted += other.restricted
        self.freed += other.freed


class RecordEraser:
    """Erases the records of one person, or counts what it would erase."""

    def __init__(
        self,
        ownership: Ownership,
        files: FileStore | None,
        clock: Clock,
        plan: Sequence[SubjectModel] = (),
    ) -> None:
        self._plan = plan
        self._ownership = ownership
        self._past = PastEraser(ownership, clock)
        self._files = files
        self._clock = clock

    # -- records that are there

    async def erase_batch(
        self, one: SubjectModel, ids: Sequence[str], tx: Tx, treatment: Treatment | None = None
    ) -> ErasedBatch:
        """Erase these records with what repeats them; `DeleteRestricted` where others keep one from going."""
        treatment = treatment or one.treatment
        rows = await one.store.seam.images(tx, ids)
        outcome, fitting = self.judge(one, rows, treatment)
        erasable_ids = [row[one.store.sql.names.index("id")] for row in fitting]
        if not erasable_ids:
            return outcome
        keys = list(_file_keys(one, fitting, treatment))
        if treatment is Treatment.DELETE:
            along: dict[Store, list[str]] = {}
            own_ids = await self._ids_counted_apart(one)
            await remove_all(
                one.store,
                erasable_ids,
                tx,
                self._clock.now(),
                physically=True,
                note_along=lambda store, gone: along.setdefault(store, []).extend(gone),
            )
            outcome.counts[one.meta.table] += len(erasable_ids)
            outcome.counts.update(_count_along(along, own_ids))
        else:
            outcome.counts[one.meta.table] += await self._anonymise(one, fitting, tx)
        await self._scrub(one, erasable_ids, treatment, tx, outcome)
        if treatment is Treatment.DELETE:
            await self._past.forget_deletes(one, erasable_ids, tx)
        if self._files is not None and keys:
            outcome.counts["stored_file"] += await self._give_up_files(keys, tx)
        return outcome

    async def anonymise_batch(self, one: SubjectModel, ids: Sequence[str], tx: Tx) -> ErasedBatch:
        """Anonymise records that should be deleted and that others need."""
        outcome = await self.erase_batch(one, ids, tx, Treatment.ANONYMISE)
        outcome.restricted += [(one.meta.name, record_id) for record_id in ids]
        return outcome

    async def count_batch(self, one: SubjectModel, ids: Sequence[str], foreseen: Foreseen) -> ErasedBatch:
        """What `erase_batch` would come to, with files by the links that go; nothing is changed."""
        run = Primary(one.store.adapter)
        rows = await self._rows(one, ids)
        id_place = one.store.sql.names.index("id")
        restricted_ids = foreseen.restricted
        anonymised_rows = [row for row in rows if row[id_place] in restricted_ids]
        outcome = ErasedBatch()
        for treatment, some in (
            (Treatment.ANONYMISE, anonymised_rows),
            (one.treatment, [row for row in rows if row[id_place] not in restricted_ids]),
        ):
            judged, fitting = self.judge(one, some, treatment)
            outcome.add(judged)
            erasable_ids = [row[id_place] for row in fitting]
            if treatment is Treatment.DELETE:
                outcome.counts[one.meta.table] += len(erasable_ids)
            else:
                outcome.counts[one.meta.table] += sum(bool(_changes(one, row)) for row in fitting)
            async for page in self._past.pages(one, erasable_ids, run, treatment):
                outcome.counts.update(row.table for row in page)
            outcome.freed += _file_links(one, fitting, treatment)
        outcome.restricted += [(one.meta.name, row[id_place]) for row in anonymised_rows]
        outcome.counts.update(_count_along(foreseen.along, await self._ids_counted_apart(one)))
        return outcome

    async def _ids_counted_apart(self, one: SubjectModel) -> dict[Store, set[str]]:
        """Records of hers that may go along with those of this model, and count as their own model says."""
        child_stores, ahead = set[Store](), [one.store]
        while ahead:
            for link in ahead.pop().links:
                if link.action is OnDelete.CASCADE and link.store not in child_stores:
                    child_stores.add(link.store)
                    ahead.append(link.store)
        own = [other for other in self._plan if other.store in child_stores and other.personal]
        return {other.store: set(await self._ownership.ids_of(other)) for other in own}

    async def held_ids(self, one: SubjectModel, ids: Sequence[str]) -> list[str]:
        """Those of the records that are held."""
        if one.meta.hold is None:
            return []
        outcome, _ = self.judge(one, await self._rows(one, ids), one.treatment)
        return [record_id for _, record_id in outcome.held]

    async def _rows(self, one: SubjectModel, ids: Sequence[str]) -> list[Row]:
        stored_rows = await Primary(one.store.adapter).fetch(
            cascade_sql.rows(one.store.sql, ids, locked=False)
        )
        return stored_rows if one.store.decode is None else [one.store.decode(row) for row in stored_rows]

    def judge(
        self, one: SubjectModel, rows: Iterable[Row], treatment: Treatment
    ) -> tuple[ErasedBatch, list[Row]]:
        """The rows that may be erased, and what is said of the others."""
        outcome, fitting = ErasedBatch(), []
        names = one.store.sql.names
        hold = None if one.meta.hold is None else names.index(one.meta.hold)
        for row in rows:
            if treatment is Treatment.KEEP:
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
        rows_to_change = [row for row in rows if _changes(one, row)]
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

    # -- their past

    async def erase_past(
        self, one: SubjectModel, ids: Sequence[str], tx: Tx, *, is_hers: bool
    ) -> ErasedBatch:
        """Scrub the past of records that are gone, or of former ones of hers, which are another's now."""
        outcome = ErasedBatch()
        await self._scrub(one, ids, one.treatment, tx, outcome, is_hers=is_hers)
        return outcome

    async def count_past(self, one: SubjectModel, ids: Sequence[str], *, is_hers: bool) -> ErasedBatch:
        """What `erase_past` would come to."""
        outcome, run = ErasedBatch(), Primary(one.store.adapter)
        async for page in self._past.pages(one, ids, run, one.treatment, is_hers=is_hers):
            outcome.counts.update(row.table for row in page)
        return outcome

    async def _scrub(
        self,
        one: SubjectModel,
        ids: Sequence[str],
        treatment: Treatment,
        tx: Tx,
        outcome: ErasedBatch,
        *,
        is_hers: bool = True,
    ) -> None:
        async for page in self._past.pages(one, ids, tx, treatment, is_hers=is_hers):
            outcome.counts.update(row.table for row in page)
            await self._past.scrub(page, tx)

    # -- files

    async def _give_up_files(self, keys: Sequence[str], tx: Tx) -> int:
        """Condemn the files that no record names any more, and forget what they were called."""
        assert self._files is not None
        await self._files.condemn(keys, self._clock.now(), tx)
        text = "UPDATE stored_file SET filename = '' WHERE state = 'condemned' AND key AMONG(:keys)"
        return await tx.execute(bind(text, tx.dialect, keys=sorted(set(keys))))

    async def count_files(self, freed: Collection[Link]) -> int:
        """How many of the files these links were the last of."""
        if self._files is None or not freed:
            return 0
        left = {
            link.key
            for link in await self._files.existing_links({link.key for link in freed})
            if link not in freed
        }
        keys = sorted({link.key for link in freed} - left)
        run = Primary(self._files.adapter)
        text = "SELECT count(*) FROM stored_file WHERE key AMONG(:keys)"
        row = await run.fetch_one(bind(text, run.dialect, keys=keys))
        return 0 if row is None else int(row[0])


def _count_along(
    along: Mapping[Store, Collection[str]], counted_apart: Mapping[Store, Collection[str]]
) -> Counter[str]:
    """The records that go along with others, by table."""
    return Counter(
        {
            store.meta.table: len(set(ids).difference(counted_apart.get(store, ())))
            for store, ids in along.items()
        }
    )


def _changes(one: SubjectModel, row: Row) -> bool:
    """Whether a personal field has another value than its erased one."""
    names = one.store.sql.names
    replacements = one.erased_values(row[names.index("id")])
    return any(
        not _is_same(one.meta.by_name[name], row[names.index(name)], value)
        for name, value in replacements.items()
    )


def _file_links(one: SubjectModel, rows: Iterable[Row], treatment: Treatment) -> list[Link]:
    """The links to files in personal fields of the records, in all fields where the records go."""
    names = one.store.sql.names
    id_place = names.index("id")
    return [
        Link(key, one.meta.name, row[id_place], f.name)
        for f, _ in file_fields(one.meta)
        if f.personal or treatment is Treatment.DELETE
        for row in rows
        for key in _keys_in(f, row[names.index(f.name)])
    ]


def _file_keys(one: SubjectModel, rows: Sequence[Row], treatment: Treatment) -> Iterable[str]:
    return {link.key: None for link in _file_links(one, rows, treatment)}


def _keys_in(f: FieldMeta, value: Any) -> list[str]:
    if f.kind is Kind.JSON:
        items = _read_json(value) if isinstance(value, str | bytes) else value
        return [key for key in items or () if isinstance(key, str)]
    return [] if value is None else [value]


def _as_stored(f: FieldMeta, value: Any) -> Any:
    """A value as rows have it, where JSON is text."""
    return encode_json(value) if f.kind is Kind.JSON and value is not None else value


def _is_same(f: FieldMeta, stored: Any, value: Any) -> bool:
    if stored is None or value is None:
        return stored is value
    if f.kind is Kind.JSON:
        return same_json(_read_json(stored), _read_json(encode_json(value)))
    return bool(stored == value)
