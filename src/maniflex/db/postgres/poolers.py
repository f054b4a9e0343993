"""Poolers between us and the server, and how many connections an adapter opens."""

from __future__ import annotations

import asyncpg

from maniflex.db.postgres.adapter import PostgresAdapter

# A statement that a session prepared, and that its backend does not know or has from another session.
_LOST_STATEMENT = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
_PID = "SELECT pg_backend_pid()"


def is_pooled(adapter: PostgresAdapter) -> bool:
    """Whether the application says that a transaction pooler stands before the server."""
    return adapter._pooler


def most_connections(adapter: PostgresAdapter) -> int:
    """How many connections the adapter has at most, the one that listens among them."""
    return sum(pool.size for pool in adapter._primary_pools) + 1


async def changes_backends(adapter: PostgresAdapter) -> bool:
    """Whether one session is served by several backends, as behind a transaction pooler.

    While a second session holds the backend that served the first one, the first is asked again.
    """
    first = await adapter._connect(adapter._hosts)
    try:
        before = await first.fetchval(_PID)
        second = await adapter._connect(adapter._hosts)
        try:
            async with second.transaction():
                await second.fetchval(_PID)
                return bool(await first.fetchval(_PID) != before)
        except _LOST_STATEMENT:
            return True
        finally:
            await second.close()
    finally:
        await first.close()
