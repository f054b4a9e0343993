"""Policies on the records of a versioned model, asked before their histories and their past are shown.

The record as it is now is judged, and as it was; one that is gone cannot be, so its past is not shown.
What a history does not keep, a record is taken to have had as it has it now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex.db.current import executor
from maniflex.db.past_rows import ToldValues, past_record
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import NotFound
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.runtime import Runtime
from maniflex.sql import select


class RecordPolicies:
    """Judges the records of one model for readers of their histories, of one record (`item`) or of many."""

    def __init__(self, runtime: Runtime, store: Store, *, item: bool) -> None:
        of_model = runtime.policies.get(store.meta.name)
        self._policies = None if of_model is None else of_model.of(Operation.READ_HISTORY, item=item)
        self._store = store
        self.is_empty = self._policies is None
        self.hides_rows = self._policies is not None and self._policies.hides_rows

    async def require(self, ctx: Context, row: Row) -> None:
        """403 unless the caller may read the record."""
        if self._policies is not None:
            await self._policies.require(ctx, self._store.record(row))

    async def require_now(self, ctx: Context, record_id: str) -> None:
        """The same of the record as it is now; 404 when it is gone."""
        if self._policies is not None:
            rows = await self._rows([record_id])
            if not rows:
                raise NotFound(model=self._store.meta.name, record_id=record_id)
            await self.require(ctx, rows[0])

    async def allowed(self, ctx: Context, record_ids: Sequence[str]) -> frozenset[str]:
        """Those of the records that the caller may read."""
        if self._policies is None:
            return frozenset(record_ids)
        return frozenset(await self.allowed_rows(ctx, record_ids))

    async def allowed_rows(self, ctx: Context, record_ids: Sequence[str]) -> dict[str, Row]:
        """The same as they are now, by their ids."""
        rows = await self._rows(list(dict.fromkeys(record_ids)))
        place = self._store.sql.names.index("id")
        return {str(row[place]): row for row in rows if await self.allows(ctx, row)}

    async def allows_version(
        self, ctx: Context, now: Row, state: Mapping[str, Any], diff: ToldValues | None
    ) -> bool:
        """Whether the caller may read the record in that state, and before the changes of an update."""
        before = (
            [] if diff is None else [{**state, **{name: side["old"] for name, side in diff.values.items()}}]
        )
        for values in (state, *before):
            then = past_record(self._store.meta, 0, values)
            fields = zip(self._store.meta.fields, then.row, now, strict=True)
            row = [is_now if f.name in then.missing else was for f, was, is_now in fields]
            if not await self.allows(ctx, row):
                return False
        return True

    async def allows(self, ctx: Context, row: Row) -> bool:
        """Whether the caller may read the record as it was."""
        return self._policies is None or await self._policies.allow(ctx, self._store.record(row))

    async def _rows(self, record_ids: Sequence[str]) -> Sequence[Row]:
        rows = await executor(self._store.adapter).fetch(select.kept_many(self._store.sql, record_ids))
        return rows if self._store.decode is None else [self._store.decode(row) for row in rows]


def page_meta(*, total: int, page: int, limit: int, counted: bool) -> dict[str, object]:
    """Where in a list a page is; a count would tell of records that only a policy hides."""
    if not counted:
        return {"page": page, "limit": limit, "has_more": page * limit < total}
    return {"total": total, "page": page, "limit": limit, "pages": -(-total // limit)}
