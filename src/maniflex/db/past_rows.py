"""Records as they were: rows of a model made again from the JSON of its history.

With snapshots the last one says how a record was; without them its diffs are replayed, oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from maniflex.db.budget import Budget
from maniflex.db.current import executor, reading
from maniflex.db.port import Adapter, Executor, Row
from maniflex.db.redacted import redact_row
from maniflex.db.store import Store
from maniflex.errors import HistoryChanged, NotFound
from maniflex.model.history_row import HistoryOperation
from maniflex.model.meta import ModelMeta
from maniflex.query.query import Query, Scope
from maniflex.sql import history, select
from maniflex.sql.history_layouts import (
    HISTORY_SCHEMA,
    FieldThen,
    Layouts,
    SchemaEntry,
    convert_value,
    newest_layout,
    typed_value,
)
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, StatementCache, by_dialect


@dataclass(frozen=True, slots=True)
class PastRecord:
    """A record at one of its versions; fields that its history does not keep are None in the row."""

    version: int
    row: Row
    missing: frozenset[str]  # attributes that the history does not keep


_NOTHING: frozenset[str] = frozenset()


class ToldValues(NamedTuple):
    """The values of a version: of the fields of now under their names of now, and those of no field."""

    values: dict[str, Any]
    former: dict[str, Any]


def past_record(meta: ModelMeta, version: int, values: Mapping[str, Any]) -> PastRecord:
    """The record that had these values by API name."""
    row: list[Any] = []
    missing: set[str] = set()
    for field in meta.fields:
        value = None
        if field.secret or field.api not in values:
            missing.add(field.name)
        else:
            try:
                value = typed_value(field, values[field.api])
            except ValueError:
                missing.add(field.name)
        row.append(value)
    return PastRecord(version, row, frozenset(missing))


class PastRows:
    """Reads the past of one versioned model."""

    def __init__(self, store: Store, history: Store, *, snapshots: bool) -> None:
        self.store = store
        self.history = history
        self.snapshots = snapshots

    @property
    def layouts(self) -> Layouts:
        """How the versions were written."""
        return self.history.sql.layouts_of(self.store.sql)

    async def learn_layouts(self, numbers: Iterable[int | None]) -> None:
        """Make sure that versions with these numbers can be read; a newer release may have written them."""
        if not all(map(self.layouts.knows, numbers)):
            await read_layouts_again(self.store.sql, self.history.sql, self.store.adapter)

    def tell(
        self,
        layout: int | None,
        values: Mapping[str, Any],
        moment: datetime | None = None,
        written_at: datetime | None = None,
    ) -> ToldValues:
        """The values of a snapshot by the names and in the types of now.

        `learn_layouts` was asked before. With a moment, fields that came until then have their first value,
        unless the version was written after they came: an older release does not see what others put there.
        """
        if values.keys() <= self.layouts.plain.get(layout, _NOTHING):
            return ToldValues(dict(values), {})
        fields_told, former = self._fields_told(layout, values)
        return ToldValues(self._with_first_values(fields_told, layout, moment, written_at), former)

    def tell_diff(self, layout: int | None, diff: Mapping[str, Any]) -> ToldValues:
        """The same of a diff: each field has an old and a new value."""
        if diff.keys() <= self.layouts.plain.get(layout, _NOTHING):
            return ToldValues(dict(diff), {})
        olds, _ = self._fields_told(layout, {name: change["old"] for name, change in diff.items()})
        news, _ = self._fields_told(layout, {name: change["new"] for name, change in diff.items()})
        by_name = self.layouts.names_then(layout) if self.layouts.knows(layout) else {}
        fields_told, former = {}, {}
        for name, change in diff.items():
            api = by_name[name][0].api if name in by_name else ""
            if api in olds and api in news:
                fields_told[api] = {**change, "old": olds[api], "new": news[api]}
            else:
                former[name] = change
        return ToldValues(fields_told, former)

    def secrets_then(self, layout: int | None) -> frozenset[str]:
        """The fields of now that versions with this layout leave out because they were secrets then."""
        then = self._then(layout)
        return frozenset(f.api for f in self.store.meta.fields if f.name in then and then[f.name].is_secret)

    def _then(self, layout: int | None) -> Mapping[str, FieldThen]:
        return self.layouts.fields_then(layout) if self.layouts.knows(layout) else {}

    def _fields_told(
        self, layout: int | None, values: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        by_name = self.layouts.names_then(layout) if self.layouts.knows(layout) else {}
        fields_told: dict[str, Any] = {}
        former: dict[str, Any] = {}
        for name, value in values.items():
            if name not in by_name:
                former[name] = value
                continue
            field, then = by_name[name]
            try:
                fields_told[field.api] = convert_value(then, field, value)
                if layout is None:  # nobody noted of which type it is
                    typed_value(field, fields_told[field.api])
            except ValueError:
                fields_told.pop(field.api, None)
                former[name] = value
        return fields_told, former

    async def list(
        self, query: Query, scope: Scope, moment: datetime, budget: Budget | None = None
    ) -> tuple[Sequence[PastRecord], int]:
        """A page of the records as they were, and how many there were in all."""
        rows = await self._page(query, scope, moment, budget=budget)
        if not rows and query.page > 1:  # past the last page: the count had no row to ride on
            first = await self._page(query.with_(page=1, limit=1), scope, moment)
            return [], first[0].total if first else 0
        return [self._record(row, moment) for row in rows], rows[0].total if rows else 0

    def _record(self, row: history.PastPageRow, moment: datetime) -> PastRecord:
        at = row.written_at
        written_at = datetime.fromisoformat(at) if isinstance(at, str) else at
        values = self.tell(row.layout, msgspec.json.decode(row.snapshot), moment, written_at).values
        return past_record(self.store.meta, row.version, values)

    async def at(
        self, record_id: str, moment: datetime, query: Query | None = None, scope: Scope = ()
    ) -> PastRecord:
        """The record as it was; `NotFound` before it was made and while it was deleted."""
        query = query or Query(self.store.meta, self.store.models)
        if not self.snapshots:
            record = await self._replay(record_id, moment, query, scope)
        else:
            rows = await self._page(query.with_(page=1, limit=1), scope, moment, record_id)
            record = self._record(rows[0], moment) if rows else None
        if record is None:
            raise NotFound(model=self.store.meta.name, record_id=record_id)
        return record

    async def state(
        self, record_id: str, version: int, *, without_erased: bool = False
    ) -> Mapping[str, Any] | None:
        """The values that the history keeps of a version, by API name; None when there is no such version.

        Personal values of an erased version are null, which they were not; `without_erased` leaves them out.
        """
        filters = [("record_id", "eq", record_id), ("version", "lte", version)]
        rows = await self._versions(filters, limit=1 if self.snapshots else None)
        if not rows or rows[0].version != version:
            return None
        if not self.snapshots:
            values = self._replay_diffs(list(reversed(rows)))[0]
        elif rows[0].snapshot is None:
            return None
        else:
            values = self.tell(rows[0].schema_version, rows[0].snapshot).values
        if not without_erased or all(row.erased_at is None for row in rows):
            return values
        personal_names = {f.api for f in self.store.meta.fields if f.personal}
        return {name: value for name, value in values.items() if name not in personal_names}

    async def _page(
        self,
        query: Query,
        scope: Scope,
        moment: datetime,
        record_id: str | None = None,
        *,
        budget: Budget | None = None,
    ) -> Sequence[history.PastPageRow]:
        """Rows of the past; refused where some of them cannot be compared as the query asks."""
        while True:
            layouts = self.layouts
            statement = history.page(self.store.sql, self.history.sql, query, scope, moment, record_id)
            run = executor(self.store.adapter)
            rows = [history.PastPageRow(*row) for row in await run.fetch(statement, budget)]
            newest = rows[0].newest_layout if rows else None
            if not rows and layouts.numbers:
                newest = await newest_number(run)
            if newest is None or newest <= layouts.newest:
                break
            await read_layouts_again(self.store.sql, self.history.sql, self.store.adapter)
        if rows and rows[0].is_doubtful:
            raise self._refusal(query, moment)
        return rows

    def _refusal(self, query: Query, moment: datetime) -> HistoryChanged:
        fields = [f for f in history.asked_fields(query) if not f.secret and f.name != "id"]
        changes = [(f.api, change) for f in fields for change in self.layouts.changes_of(f, moment)]
        if not changes:
            changes = [(f.api, change) for f in fields for change in self.layouts.additions_of(f, moment)]
        return HistoryChanged(
            f"{'; '.join(dict.fromkeys(change for _, change in changes))}: not every record of then can be"
            " compared; ask for a later moment, or without that filter or sort",
            details=[{"field": name, "message": change} for name, change in changes],
        )

    async def _replay(
        self, record_id: str, moment: datetime, query: Query, scope: Scope
    ) -> PastRecord | None:
        if scope:
            inside = select.kept_one(self.store.sql, record_id, (), scope)
            if await executor(self.store.adapter).fetch_one(inside) is None:
                return None
        rows = await self._versions([("record_id", "eq", record_id), ("timestamp", "lte", moment)])
        values, is_there = self._replay_diffs(list(reversed(rows)), moment)
        if not is_there:
            return None
        record = past_record(self.store.meta, rows[0].version, values)
        if not query.filters and not scope:
            return record
        if any(field.name in record.missing and not field.secret for field in history.asked_fields(query)):
            raise self._refusal(query, moment)
        binding = rows[0].binding
        state = history.PastState(
            msgspec.json.encode(redact_row(self.store.meta, record.row)).decode(),
            None if binding is None else msgspec.json.encode(binding).decode(),
        )
        is_inside = history.inside(self.store.sql, record_id, state, query.filters, scope)
        return None if await executor(self.store.adapter).fetch_one(is_inside) is None else record

    async def _versions(self, filters: Sequence[Any], limit: int | None = None) -> Sequence[Any]:
        """Rows of the history as records, newest first, all of them readable."""
        query = Query(self.history.meta, self.history.models, limit=limit)
        for name, op, value in filters:
            query = query.with_filter(name, value, op)
        rows, _ = await self.history.page(self.history.listing(query.with_sort("version", "desc")))
        records: Sequence[Any] = [self.history.record(row) for row in rows]
        await self.learn_layouts(record.schema_version for record in records)
        return records

    def _replay_diffs(
        self, rows: Sequence[Any], moment: datetime | None = None
    ) -> tuple[dict[str, Any], bool]:
        """The values after all these diffs, oldest first, and whether the record was there then.

        A field that came later has no value until a version tells one, unless all records got the same.
        """
        meta = self.store.meta
        values: dict[str, Any] = {}
        is_there = False
        moments: dict[str, Any] = {}
        names = {f.name: f.api for f in meta.fields}
        layout: int | None = None
        for row in rows:
            if row.operation == HistoryOperation.DELETE:
                is_there = False
                continue
            told_diff = self.tell_diff(row.schema_version, row.diff)
            if row.operation != HistoryOperation.UPDATE:
                is_there, layout = True, row.schema_version
                then = self._then(layout)
                # Nobody noted the names of a version without a layout; with others, it was another model.
                is_strange = layout is None and bool(told_diff.former)
                values = {
                    f.api: None for f in meta.fields if not f.secret and f.name in then and not is_strange
                }
                if row.operation != HistoryOperation.RESTORE:
                    moments["created_at"] = row.timestamp
            by_name = self.layouts.names_then(row.schema_version)
            for name in told_diff.former:
                if name in by_name:  # what it became is not certain
                    values.pop(by_name[name][0].api, None)
            values |= {name: change["new"] for name, change in told_diff.values.items()}
            moments["updated_at"] = row.timestamp
            values[names["id"]] = row.record_id
        values |= {names[name]: stamp.isoformat() for name, stamp in moments.items()}
        return self._with_first_values(values, layout, moment) if is_there else values, is_there

    def _with_first_values(
        self,
        values: dict[str, Any],
        layout: int | None,
        moment: datetime | None,
        written_at: datetime | None = None,
    ) -> dict[str, Any]:
        """The values, with those that fields which came between a layout and a moment had in all records.

        Replayed diffs have no time of writing: they tell what a newer release put into such a field.
        """
        for field in self.store.meta.fields if moment is not None else ():
            if field.api not in values and not field.secret and field.name not in self._then(layout):
                fill = self.layouts.fill(field, layout, moment)
                if fill is not None and (written_at is None or written_at < fill.added_at):
                    values[field.api] = msgspec.to_builtins(fill.value, enc_hook=str)
        return values


# The layouts as the database has them, which other processes add to (`schema/history.py`).


async def read_layouts_again(model: ModelSql, history: ModelSql, adapter: Adapter) -> None:
    """Learn of layouts that other processes have noted since this one was started."""
    run = reading(adapter)
    newest, own = await newest_number(run), history.layouts_of(model).own
    history.layouts = Layouts(model.meta, await read_entries(run, model.table.name), own, newest)
    history.shapes = StatementCache()


async def read_entries(run: Executor, table: str) -> list[SchemaEntry]:
    """The layouts and changes of one table, oldest first."""
    mark = by_dialect(run.dialect, sqlite="?", postgres="$1")
    rows = await run.fetch(
        Sql(
            f"SELECT number, noted_at, what, content FROM {HISTORY_SCHEMA} WHERE table_name = {mark}"
            " ORDER BY number",
            (table,),
        )
    )
    return [
        SchemaEntry(int(number), datetime.fromisoformat(noted_at), what, json.loads(content))
        for number, noted_at, what, content in rows
    ]


async def newest_number(run: Executor) -> int:
    """The number of the last layout or change of all tables."""
    row = await run.fetch_one(Sql(f"SELECT {newest_layout()}"))
    return 0 if row is None or row[0] is None else int(row[0])
