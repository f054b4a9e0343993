"""Reads that must not be behind: durable work asks the primary, never a replica."""

from __future__ import annotations

from typing import Any, cast

from maniflex.db.budget import Budget
from maniflex.db.current import current_tx
from maniflex.db.port import Adapter, Row, Tx
from maniflex.sql.statement import Sql, by_dialect


class Primary:
    """The reads of an adapter, answered where its writes go; on SQLite there is but one place."""

    read_versions = None  # it is no transaction

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._only = by_dialect(adapter.dialect, sqlite=True, postgres=False)

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        return await (self._adapter.fetch(sql, budget) if self._only else self._adapter.write(sql))

    async def fetch_one(self, sql: Sql) -> Row | None:
        rows = await self.fetch(sql)
        return rows[0] if rows else None


def reading(adapter: Adapter, tx: Tx | None = None) -> Tx:
    """The executor for current reads: the transaction `tx`, the open one, or the primary."""
    primary: Any = Primary(adapter)
    return tx or current_tx(adapter) or cast(Tx, primary)
