"""Policies on the records of a versioned model, asked before their histories and their past are shown.

The record as it is now is judged; one that is gone cannot be, so its past is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.db.current import executor
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
        records = [self._store.record(row) for row in await self._rows(list(dict.fromkeys(record_ids)))]
        return frozenset([record.id for record in records if await self._policies.allow(ctx, record)])

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
