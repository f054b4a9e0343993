"""Statements beside the open transaction: committed by themselves, and never read from a replica."""

from __future__ import annotations

from maniflex.db.current import current_tx
from maniflex.db.port import Adapter, Row
from maniflex.errors import TransactionError
from maniflex.sql.statement import Sql, by_dialect


async def write_separately(adapter: Adapter, sql: Sql) -> list[Row]:
    """The rows a write returns, which stays committed when the caller's transaction rolls back."""
    has_one_writer = by_dialect(adapter.dialect, sqlite=True, postgres=False)
    if has_one_writer and current_tx(adapter) is not None:
        # There is one writer, and the caller holds it: this write would wait for its own caller.
        raise TransactionError("TX_OPEN", "SQLite has one writer, which the open transaction holds")
    return await adapter.write(sql)


async def read_current(adapter: Adapter, sql: Sql) -> Row | None:
    """The first row of a read as the last commit left it."""
    readers_see_commits = by_dialect(adapter.dialect, sqlite=True, postgres=False)
    if readers_see_commits:
        return await adapter.fetch_one(sql)
    rows = await adapter.write(sql)  # where writes go, because a replica may be behind
    return rows[0] if rows else None
