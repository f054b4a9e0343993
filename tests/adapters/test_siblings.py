"""Siblings and batches: what is particular to each database."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.errors import Timeout
from maniflex.sql.statement import Sql

SETTINGS = ("application_name", "search_path", "statement_timeout", "lock_timeout", "TimeZone")


def exists(path: str) -> bool:
    return os.path.exists(path)


@pytest.mark.parametrize("pooler", [False, True])
async def test_a_postgres_sibling_has_the_same_session(postgres_url: str, pooler: bool) -> None:
    adapter = PostgresAdapter(
        postgres_url,
        schema="shop",
        application_name="shop",
        pooler=pooler,
        statement_timeout=timedelta(seconds=7),
        lock_timeout=timedelta(seconds=3),
    )
    sibling = adapter.sibling()
    await adapter.open()
    await sibling.open()
    for name in SETTINGS:
        show = [Sql("SELECT 1"), Sql(f"SHOW {name}")]
        assert await sibling.batch(show) == await adapter.batch(show)
    await sibling.close()
    await adapter.close()


async def test_a_postgres_sibling_is_content_with_two_connections(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, pool_size=10, application_name="shop")
    sibling = adapter.sibling()
    await sibling.open()
    me = Sql("SELECT pg_backend_pid() FROM pg_sleep(0.01)")
    pids = await asyncio.gather(*(sibling.fetch(me) for _ in range(10)))
    assert len({row[0] for [row] in pids}) == 2
    await sibling.close()


async def test_a_batch_outlives_a_change_of_the_schema(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, pool_size=1)
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id BIGINT)"))
    batch = [Sql("INSERT INTO things (id) VALUES ($1)", (1,)), Sql("SELECT * FROM things")]
    await adapter.batch(batch)
    await adapter.execute(Sql("ALTER TABLE things ADD COLUMN name TEXT"))

    [_, rows] = await adapter.batch(batch)

    assert [tuple(row) for row in rows] == [(1, None), (1, None)]
    await adapter.close()


async def test_a_batch_uses_one_connection_and_gives_it_back(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, pool_size=1)
    await adapter.open()
    me = Sql("SELECT pg_backend_pid(), txid_current()")
    for _ in range(3):
        first, second = await adapter.batch([me, me])
        assert [tuple(row) for row in first] == [tuple(row) for row in second]
    await adapter.close()


async def test_a_sibling_of_a_private_database_leaves_its_file() -> None:
    adapter = SqliteAdapter(":memory:")
    await adapter.open()
    sibling = adapter.sibling()
    await sibling.open()
    [[_, _, path]] = await adapter.fetch(Sql("PRAGMA database_list"))
    assert [tuple(row) for row in await sibling.fetch(Sql("PRAGMA database_list"))] == [(0, "main", path)]
    await sibling.close()
    assert exists(path)
    await adapter.close()
    assert not exists(path)


async def test_sqlite_writers_wait_as_long_as_the_lock_timeout_and_no_longer(tmp_path: Path) -> None:
    adapter = SqliteAdapter(str(tmp_path / "app.db"), lock_timeout=timedelta(milliseconds=200))
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY)"))
    sibling = adapter.sibling()
    await sibling.open()
    insert = Sql("INSERT INTO things DEFAULT VALUES")
    loop = asyncio.get_running_loop()
    async with adapter.transaction() as tx:
        await tx.execute(insert)
        began = loop.time()
        with pytest.raises(Timeout):
            await sibling.batch([insert, insert])
        assert loop.time() - began >= 0.19
    assert await sibling.batch([insert, insert]) == [[], []]
    await sibling.close()
    await adapter.close()


async def test_a_sqlite_sibling_gets_its_turn_beside_an_adapter_that_never_rests(tmp_path: Path) -> None:
    adapter = SqliteAdapter(str(tmp_path / "app.db"))
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY)"))
    insert = Sql("INSERT INTO things DEFAULT VALUES")
    done = threading.Event()

    async def hammer() -> None:
        while not done.is_set():
            await adapter.batch([insert, insert])

    async def elsewhere() -> None:
        sibling = adapter.sibling()
        await sibling.open()
        for _ in range(30):
            await sibling.execute(insert)
        await sibling.close()

    def run() -> None:
        try:
            asyncio.run(elsewhere())
        finally:
            done.set()

    await asyncio.gather(asyncio.to_thread(run), *(hammer() for _ in range(32)))
    await adapter.close()
