"""Statements beside the open transaction: committed by themselves, and never read from a replica."""

from __future__ import annotations

from collections.abc import Awaitable

from maniflex.db.current import current_tx
from maniflex.db.port import Adapter, Row
from maniflex.errors import TransactionError
from maniflex.sql.statement import Sql, by_dialect


def write_separately(adapter: Adapter, sql: Sql) -> Awaitable[list[Row]]:
    """The rows a write returns, which stays committed when the caller's transaction rolls back."""
    has_one_writer = by_dialect(adapter.dialect, sqlite=True, postgres=False)
    if has_one_writer and current_tx(adapter) is not None:
        # There is one writer, and the caller holds it: this write would wait for its own caller.
        raise TransactionError("TX_OPEN", "SQLite has one writer, which the open transaction holds")
    return adapter.write(sql)


def read_current(adapter: Adapter, sql: Sql) -> Awaitable[Row | None]:
    """The first row of a read as the last commit left it."""
    readers_see_commits = by_dialect(adapter.dialect, sqlite=True, postgres=False)
    return adapter.fetch_one(sql) if readers_see_commits else _read_where_writes_go(adapter, sql)


async def _read_where_writes_go(adapter: Adapter, sql: Sql) -> Row | None:
    rows = await adapter.write(sql)  # because a replica may be behind
    return rows[0] if rows else None
