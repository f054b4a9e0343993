"""Stores in the databases and the Redis of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from maniflex import Server
from maniflex._clock import Clock


@asynccontextmanager
async def in_sql(url: Any, clock: Clock, *forms: Any, **options: Any) -> AsyncIterator[Server]:
    """A server that has the tables of these stores, which are attached to it."""
    server = Server(url, clock=clock, background=False, **{"pool_size": 10, **options})
    server.register(*(table for form in forms for table in form.tables))
    async with server.lifespan(role="client"):
        for form in forms:
            form.attach(server._seal().runtime.adapter, clock)
        yield server


async def age(form: Any, delta: timedelta) -> None:
    """Let the values of a Redis store be nearer to their end."""
    redis = form._redis()
    async for name in redis.scan_iter(f"{form.prefix}:*"):
        left = await redis.pttl(name)
        if left >= 0:
            await redis.pexpire(name, max(left - round(delta.total_seconds() * 1000), 0))


async def forget(form: Any) -> None:
    """Remove everything below the prefix of a Redis store, and close it."""
    redis = form._redis()
    for pattern in (f"{form.prefix}:*", "{" + form.prefix + "}:*"):
        async for name in redis.scan_iter(pattern):
            await redis.delete(name)
    await form.close()


# The columns besides id and end, and what they hold in a row that is over.
EXPIRED = {
    "idempotency_key": ("fingerprint, token, settled", "'', '', true"),
    "rate_limit": ("full_at, granted", "1, true"),
    "revoked_token": ("", ""),
}


async def fill(server: Server, clock: Clock, count: int, table: str = "idempotency_key") -> None:
    """Rows that are over already, by one statement."""
    columns, values = (f", {text}" if text else "" for text in EXPIRED[table])
    over = int(clock.now().timestamp()) * 1_000_000_000
    await server.raw_exec(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        f" INSERT INTO {table} (id, expires_at{columns})"
        f" SELECT 'row ' || i, CAST(? AS bigint) - i{values} FROM n",
        count,
        over,
    )
    await server.raw_exec(f"ANALYZE {table}")
