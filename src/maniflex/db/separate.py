"""Statements beside the open transaction: committed by themselves, and never read from a replica."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from maniflex.db.current import current_reader, current_tx
from maniflex.db.port import Adapter, Row
from maniflex.db.primary import ApartFromReader, Primary
from maniflex.errors import TransactionError
from maniflex.sql.statement import Sql, by_dialect

T = TypeVar("T")


def write_separately(adapter: Adapter, sql: Sql) -> Awaitable[list[Row]]:
    """The rows a write returns, which stays committed when the caller's transaction rolls back."""
    _refuse_inside_transaction(adapter)
    return adapter.write(sql) if current_reader.get() is None else _apart(adapter.write, sql)


def execute_separately(adapter: Adapter, sql: Sql) -> Awaitable[int]:
    """How many rows a write touched, which stays committed likewise."""
    _refuse_inside_transaction(adapter)
    return adapter.execute(sql) if current_reader.get() is None else _apart(adapter.execute, sql)


def _refuse_inside_transaction(adapter: Adapter) -> None:
    if current_tx(adapter) is not None and by_dialect(adapter.dialect, sqlite=True, postgres=False):
        # There is one writer, and the caller holds it: this write would wait for its own caller.
        raise TransactionError("TX_OPEN", "SQLite has one writer, which the open transaction holds")


async def _apart(run: Callable[[Sql], Awaitable[T]], sql: Sql) -> T:
    # A limit or a cache that writes in every request would else send all its reads to the primary.
    with ApartFromReader():
        return await run(sql)


def read_current(adapter: Adapter, sql: Sql) -> Awaitable[Row | None]:
    """The first row of a read as the last commit left it."""
    return Primary(adapter).fetch_one(sql)
