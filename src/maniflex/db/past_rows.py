"""Records as they were: rows of a model made again from the JSON of its history.

With snapshots the last one says how a record was; without them its diffs are replayed, oldest first.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from maniflex.db.budget import Budget
from maniflex.db.current import executor
from maniflex.db.port import Row
from maniflex.db.redacted import redacted
from maniflex.db.store import Store
from maniflex.errors import NotFound
from maniflex.model.history_row import HistoryOperation
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.query.query import Query, Scope
from maniflex.sql import past, select
from maniflex.sql.codec import encode_json


def _same(value: Any) -> Any:
    return value


# From the form that answers and histories have to the type of a row.
_READERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _same,
    Kind.INT: _same,
    Kind.FLOAT: float,
    Kind.BOOL: _same,
    Kind.DECIMAL: Decimal,
    Kind.DATETIME: datetime.fromisoformat,
    Kind.DATE: date.fromisoformat,
    Kind.TIME: time.fromisoformat,
    Kind.UUID: UUID,
    Kind.BYTES: b64decode,
    Kind.JSON: encode_json,
}


@dataclass(frozen=True, slots=True)
class PastRecord:
    """A record at one of its versions; fields that its history does not keep are None in the row."""

    version: int
    row: Row
    missing: frozenset[str]  # attributes that the history does not keep


def typed_value(field: FieldMeta, value: Any) -> Any:
    """A value of a history as rows have it; `ValueError` when the field is of another type since."""
    if value is None:
        return None
    try:
        return _READERS[field.kind](value)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"{field.name} was of another type") from error


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

    async def list(
        self, query: Query, scope: Scope, moment: datetime, budget: Budget | None = None
    ) -> tuple[Sequence[PastRecord], int]:
        """A page of the records as they were, and how many there were in all."""
        rows = await self._page(query, scope, moment, budget=budget)
        if not rows and query.page > 1:  # past the last page: the count had no row to ride on
            first = await self._page(query.with_(page=1, limit=1), scope, moment)
            return [], int(first[0][2]) if first else 0
        records = [past_record(self.store.meta, row[0], msgspec.json.decode(row[1])) for row in rows]
        return records, int(rows[0][2]) if rows else 0

    async def at(
        self, record_id: str, moment: datetime, query: Query | None = None, scope: Scope = ()
    ) -> PastRecord:
        """The record as it was; `NotFound` before it was made and while it was deleted."""
        query = query or Query(self.store.meta, self.store.models)
        if not self.snapshots:
            record = await self._replay(record_id, moment, query, scope)
        else:
            rows = await self._page(query.with_(page=1, limit=1), scope, moment, record_id)
            record = (
                past_record(self.store.meta, rows[0][0], msgspec.json.decode(rows[0][1])) if rows else None
            )
        if record is None:
            raise NotFound(model=self.store.meta.name, record_id=record_id)
        return record

    async def state(self, record_id: str, version: int) -> Mapping[str, Any] | None:
        """The values that the history keeps of a version, by API name; None when there is no such version."""
        filters = [("record_id", "eq", record_id), ("version", "lte", version)]
        rows = await self._versions(filters, limit=1 if self.snapshots else None)
        if not rows or rows[0].version != version:
            return None
        return rows[0].snapshot if self.snapshots else _replay_diffs(self.store.meta, reversed(rows))[0]

    async def _page(
        self,
        query: Query,
        scope: Scope,
        moment: datetime,
        record_id: str | None = None,
        *,
        budget: Budget | None = None,
    ) -> Sequence[Row]:
        statement = past.page(self.store.sql, self.history.sql, query, scope, moment, record_id)
        return await executor(self.store.adapter).fetch(statement, budget)

    async def _replay(
        self, record_id: str, moment: datetime, query: Query, scope: Scope
    ) -> PastRecord | None:
        if scope:
            inside = select.kept_one(self.store.sql, record_id, (), scope)
            if await executor(self.store.adapter).fetch_one(inside) is None:
                return None
        rows = await self._versions([("record_id", "eq", record_id), ("timestamp", "lte", moment)])
        values, is_there = _replay_diffs(self.store.meta, reversed(rows))
        if not is_there:
            return None
        record = past_record(self.store.meta, rows[0].version, values)
        if not query.filters and not scope:
            return record
        binding = rows[0].binding
        state = past.PastState(
            msgspec.json.encode(redacted(self.store.meta, record.row)).decode(),
            None if binding is None else msgspec.json.encode(binding).decode(),
        )
        is_inside = past.inside(self.store.sql, record_id, state, query.filters, scope)
        return None if await executor(self.store.adapter).fetch_one(is_inside) is None else record

    async def _versions(self, filters: Sequence[Any], limit: int | None = None) -> Sequence[Any]:
        """Rows of the history as records, newest first."""
        query = Query(self.history.meta, self.history.models, limit=limit)
        for name, op, value in filters:
            query = query.with_filter(name, value, op)
        rows, _ = await self.history.page(self.history.listing(query.with_sort("version", "desc")))
        return [self.history.record(row) for row in rows]


def _replay_diffs(meta: ModelMeta, rows: Any) -> tuple[dict[str, Any], bool]:
    """The values after all these diffs, oldest first, and whether the record was there then."""
    values: dict[str, Any] = {}
    is_there = False
    moments: dict[str, Any] = {}
    names = {f.name: f.api for f in meta.fields}
    for row in rows:
        if row.operation == HistoryOperation.DELETE:
            is_there = False
            continue
        if row.operation != HistoryOperation.UPDATE:
            is_there = True
            values = {f.api: None for f in meta.fields if not f.secret}
            if row.operation != HistoryOperation.RESTORE:
                moments["created_at"] = row.timestamp
        values |= {name: change["new"] for name, change in row.diff.items()}
        moments["updated_at"] = row.timestamp
        values[names["id"]] = row.record_id
    values |= {names[name]: moment.isoformat() for name, moment in moments.items()}
    return values, is_there
