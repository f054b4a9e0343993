"""What is kept of a person, as parts of an archive: records, their files, versions, runs and messages.

A client with every right would see the same: no hidden and no writeonly field, and encrypted ones open. Parts
come one after the other, a batch of records or a chunk of a file each; those of one name belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from maniflex.background.environment import Environment
from maniflex.db.current import Primary
from maniflex.db.port import Row
from maniflex.db.redacted import as_json
from maniflex.erasure.ownership import Ownership, OwnerWalk
from maniflex.erasure.past import json_values, read_pages
from maniflex.erasure.plan import SubjectModel
from maniflex.erasure.statements import bind, filled_in
from maniflex.erasure.work import EVENTS, MESSAGES, RUNS, SCHEDULES, WorkEraser
from maniflex.files.api import Files
from maniflex.model.field import file_fields
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql import cascade as cascade_sql

BATCH = 200
_COLUMNS = {
    RUNS.table: ("id", "type", "status", "payload", "result", "created_at"),
    MESSAGES.table: ("id", "kind", "key", "status", "payload", "created_at"),
    SCHEDULES.table: ("id", "name", "cron", "payload", "created_at"),
    EVENTS.table: ("id", "type", "subject", "data", "headers", "time"),
}
_JSON = frozenset({"payload", "data", "headers", "result", "diff", "snapshot"})
_VERSION = ("record_id", "version", "operation", "timestamp", "diff", "snapshot")
_write = msgspec.json.Encoder(decimal_format="string").encode
_read = msgspec.json.Decoder().decode


class Exporting:
    """The export of one person."""

    def __init__(
        self, subject: str, user_id: str, environment: Environment, plan: Sequence[SubjectModel], files: Files
    ) -> None:
        self._subject = subject
        self._environment = environment
        self._plan = plan
        self._files = files
        self._ownership = Ownership(subject)
        self._work = WorkEraser(subject, user_id, environment)
        self._keys: list[str] = []  # of files that records name
        self.counts: Counter[str] = Counter()  # by name of a part

    async def parts(self, *, history: bool, now: Callable[[], datetime]) -> AsyncIterator[tuple[str, bytes]]:
        """The name and some bytes of one part after the other; the manifest is the last."""
        record_ids: dict[str, list[str]] = {}
        for one in self._plan:
            record_ids[one.meta.name] = await self._ownership.ids_of(one)
            async for part in self._of_model(one, record_ids[one.meta.name]):
                yield part
            if history and one.history is not None:
                async for part in self._versions(one, record_ids[one.meta.name]):
                    yield part
        for key in dict.fromkeys(self._keys):
            self.counts["files"] += 1
            async with await self._files.open(key) as reader:
                async for chunk in reader:
                    yield f"files/{key}", chunk
        async for part in self._of_work(record_ids):
            yield part
        manifest = {
            "subject": self._subject,
            "exported_at": now(),
            "counts": dict(sorted(self.counts.items())),
            "models": {one.meta.name: [f.api for f in _shown_fields(one)] for one in self._plan},
        }
        yield "manifest.json", msgspec.json.format(_write(manifest))

    async def _of_model(self, one: SubjectModel, ids: Sequence[str]) -> AsyncIterator[tuple[str, bytes]]:
        store, run = one.store, Primary(one.store.adapter)
        name = f"{one.meta.table}.jsonl"
        for start in range(0, len(ids), BATCH):
            query = cascade_sql.rows(store.sql, ids[start : start + BATCH], locked=False)
            rows = await run.fetch(query)
            decoded_rows = rows if store.decode is None else [store.decode(row) for row in rows]
            self.counts[name] += len(rows)
            self._keys += _file_keys(one, decoded_rows)
            yield name, _lines(_as_shown(one, row) for row in decoded_rows)

    async def _versions(self, one: SubjectModel, ids: Sequence[str]) -> AsyncIterator[tuple[str, bytes]]:
        """The versions of her time; what they say of another's, who has or had the record, is null."""
        assert one.history is not None
        run, name = Primary(one.history.adapter), f"{one.history.meta.table}.jsonl"
        past, keys = await self._ownership.past_of(one), await self._ownership.owner_keys(one)
        text = f"SELECT id, {', '.join(_VERSION)} FROM {{t}} WHERE record_id AMONG(:ids)"
        text = filled_in(text, run.dialect, {"t": one.history.meta.table})
        for record_ids, is_hers in (([*ids, *past.gone], True), (past.former, False)):
            walk = OwnerWalk(one, keys, unless_told=is_hers)
            for start in range(0, len(record_ids), BATCH):
                some = sorted(set(record_ids[start : start + BATCH]))
                async for rows in read_pages(run, text, ("record_id", "version"), ids=some):
                    versions = [v for row in rows if (v := _own_version(one, walk, row)) is not None]
                    self.counts[name] += len(versions)
                    if versions:
                        yield name, _lines(versions)

    async def _of_work(self, record_ids: Mapping[str, Sequence[str]]) -> AsyncIterator[tuple[str, bytes]]:
        run = Primary(self._environment.adapter)
        for kind in await self._work.kinds():
            columns, name = _COLUMNS[kind.table], f"{kind.table}.jsonl"
            ids = await self._work.ids_of(kind, record_ids)
            text = f"SELECT {', '.join(columns)} FROM {kind.table} WHERE id AMONG(:ids) ORDER BY id"
            for start in range(0, len(ids), BATCH):
                rows = await run.fetch(bind(text, run.dialect, ids=ids[start : start + BATCH]))
                self.counts[name] += len(rows)
                yield name, _lines(_name_values(columns, row) for row in rows)


def _own_version(one: SubjectModel, walk: OwnerWalk, row: Row) -> dict[str, Any] | None:
    """The version as far as it is hers; None for one that is another's."""
    version = _name_values(_VERSION, row[1:])
    diff, snapshot = (json_values(row[1 + _VERSION.index(name)]) for name in ("diff", "snapshot"))
    before, after = walk.step(version["record_id"], version["operation"], diff or {}, snapshot)
    if not (before or after):
        return None
    sides = [side for side, is_hers in (("old", before), ("new", after)) if not is_hers]
    if sides and diff:
        version["diff"] = {
            name: {side: None if side in sides else value for side, value in change.items()}
            for name, change in diff.items()
            if isinstance(change, Mapping)
        }
    return version if after else {**version, "snapshot": None}


def _shown_fields(one: SubjectModel) -> list[FieldMeta]:
    return [f for f in one.meta.fields if f.visible]


def _as_shown(one: SubjectModel, row: Row) -> dict[str, Any]:
    names = one.store.sql.names
    return {
        f.api: as_json(row[names.index(f.name)]) if f.kind is Kind.JSON else row[names.index(f.name)]
        for f in _shown_fields(one)
    }


def _file_keys(one: SubjectModel, rows: Iterable[Row]) -> list[str]:
    names, keys = one.store.sql.names, list[str]()
    for f, _ in file_fields(one.meta):
        for row in rows if f.visible else ():
            value = row[names.index(f.name)]
            if f.kind is Kind.JSON:
                keys += _read(value) if value else []
            elif value is not None:
                keys.append(value)
    return keys


def _name_values(columns: Sequence[str], row: Row) -> dict[str, Any]:
    return {
        name: as_json(value) if name in _JSON else value for name, value in zip(columns, row, strict=True)
    }


def _lines(values: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(_write(one) + b"\n" for one in values)
