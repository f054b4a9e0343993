"""`server.history(Invoice)`: the history of a model for code, bound where `server.db` is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

from maniflex.db.records import Bound, Records
from maniflex.errors import DeclarationError, NotFound
from maniflex.features.history import past_rows
from maniflex.model.base import Model
from maniflex.model.history_row import HistoryRow, history_model, is_versioned
from maniflex.model.meta import Kind
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.runtime import Runtime
from maniflex.sql.history_layouts import typed_value

M = TypeVar("M", bound=Model)


class ModelHistory(Generic[M]):
    """What happened to the records of one versioned model."""

    def __init__(self, runtime: Runtime, model: type[M] | str, bound: Bound | None = None) -> None:
        self._store = runtime.store(model)
        self._bound = bound
        meta = self._store.meta
        if not is_versioned(meta.options):
            raise DeclarationError(f"{meta.name} keeps no history; declare it with versioned=True")
        self._past = past_rows(runtime, meta)
        self._rows: Records[HistoryRow] = Records(runtime.stores[history_model(meta.cls)], bound=bound)

    async def of(self, id: str, *, limit: int | None = None) -> list[HistoryRow]:
        """The versions of a record, newest first; also of one that is gone."""
        return await self._rows.list({"record_id": id}, "version:desc", limit=limit)

    async def version(self, id: str, number: int) -> HistoryRow:
        """One version of a record; `NotFound` when there is none."""
        rows = await self._rows.list({"record_id": id, "version": number}, limit=1)
        if not rows:
            raise NotFound(model=self._rows_name, record_id=id)
        return rows[0]

    async def at(self, id: str, moment: datetime) -> M:
        """The record as it was, without what its history does not keep; `NotFound` when it was not there."""
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        scope = (
            () if self._bound is None else await self._bound.scope_of(self._store.meta, Operation.READ.value)
        )
        record = await self._past.at(id, moment, scope=scope)
        fields = [f for f in self._store.meta.fields if f.name not in record.missing]
        values = [v for f, v in zip(self._store.meta.fields, record.row, strict=True) if f in fields]
        return cast(M, self._store.record(values, fields))

    async def revert(self, id: str, number: int) -> M:
        """Give a record the values of one of its versions, as an update that is a version of its own."""
        await self.version(id, number)
        state = await self._past.state(id, number)
        marker = self._store.meta.soft_delete
        fixed_names = {"id", "created_at", "updated_at", marker.field if marker else "id"}
        values: dict[str, Any] = {
            f.name: state[f.api] if f.kind is Kind.JSON else typed_value(f, state[f.api])
            for f in self._store.meta.fields
            if state is not None and f.api in state and not f.secret and f.name not in fixed_names
        }
        records: Records[M] = Records(self._store, bound=self._bound)
        return await records.update(id, values)

    @property
    def _rows_name(self) -> str:
        return f"{self._store.meta.name}History"
