"""Statements beside the open transaction: committed by themselves, and never read from a replica."""

from __future__ import annotations

from collections.abc import Awaitable

from maniflex.db.current import current_reader, current_tx
from maniflex.db.port import Adapter, Row
from maniflex.db.primary import ApartFromReader, Primary
from maniflex.errors import TransactionError
from maniflex.sql.statement import Sql, by_dialect


def write_separately(adapter: Adapter, sql: Sql) -> Awaitable[list[Row]]:
    """The rows a write returns, which stays committed when the caller's transaction rolls back."""
    if current_tx(adapter) is not None and by_dialect(adapter.dialect, sqlite=True, postgres=False):
        # There is one writer, and the caller holds it: this write would wait for its own caller.
        raise TransactionError("TX_OPEN", "SQLite has one writer, which the open transaction holds")
    return adapter.write(sql) if current_reader.get() is None else _write_apart(adapter, sql)


async def _write_apart(adapter: Adapter, sql: Sql) -> list[Row]:
    # A limit or a cache that writes in every request would else send all its reads to the primary.
    with ApartFromReader():
        return await adapter.write(sql)


def read_current(adapter: Adapter, sql: Sql) -> Awaitable[Row | None]:
    """The first row of a read as the last commit left it."""
    return Primary(adapter).fetch_one(sql)
