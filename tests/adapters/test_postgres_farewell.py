"""Connections on which the server has said its last words and has not hung up yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.sql.statement import Sql
from tests.kit.postgres import terminate
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually

ONE = Sql("SELECT 1")


async def work(adapter: PostgresAdapter) -> None:
    """Keep both connections of `adapter` busy once."""
    async with adapter.transaction() as tx:
        await tx.fetch(ONE)
        await adapter.fetch(ONE)


@pytest.fixture
async def adapter(postgres_url: str) -> AsyncIterator[PostgresAdapter]:
    """Two idle connections: the driver has read that the server ends them, and no end of the stream."""
    relay = Relay(postgres_url)
    await relay.listen()
    adapter = PostgresAdapter(relay.url, pool_size=2)
    await adapter.open()
    await work(adapter)
    relay.stay_on_the_line()
    await terminate(postgres_url)
    await eventually(lambda: relay.farewells == 2, "the last words on both connections")
    for _ in range(3):
        await asyncio.sleep(0)  # they have arrived; let the driver read them
    yield adapter
    await adapter.close()
    await relay.cut()


@pytest.mark.parametrize("method", ["fetch", "fetch_one", "fetch_named", "write", "execute"])
@pytest.mark.parametrize("statement", [ONE, Sql("SELECT 2")], ids=["prepared", "new"])
async def test_a_statement_is_sent_on_a_new_connection(
    adapter: PostgresAdapter, method: str, statement: Sql
) -> None:
    run: Callable[[Sql], Awaitable[object]] = getattr(adapter, method)
    for _ in range(3):
        await run(statement)
    await work(adapter)


async def test_a_transaction_begins_on_a_new_connection(adapter: PostgresAdapter) -> None:
    await work(adapter)


async def test_a_write_is_sent_once(adapter: PostgresAdapter) -> None:
    await adapter.execute(Sql("CREATE TABLE t (v int)"))
    await adapter.execute(Sql("INSERT INTO t VALUES (1)"))
    assert await adapter.fetch(Sql("SELECT v FROM t")) == [(1,)]


@pytest.mark.parametrize("statement", [ONE, Sql("SELECT 2")], ids=["prepared", "new"])
async def test_a_late_transaction_begins_on_a_new_connection(
    adapter: PostgresAdapter, statement: Sql
) -> None:
    for _ in range(3):
        async with adapter.transaction(late=True) as tx:
            await tx.fetch(statement)


async def test_a_late_transaction_with_a_guard_alone_begins_on_a_new_connection(
    adapter: PostgresAdapter,
) -> None:
    async with adapter.transaction(late=True) as tx:
        tx.guard_commit(ONE)
