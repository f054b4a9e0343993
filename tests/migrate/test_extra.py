"""The statements a migration runs after the tables are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from maniflex.config import sqlite_path
from maniflex.db.port import Adapter
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.errors import RequestError
from maniflex.schema.start import make_tables
from maniflex.sql.statement import Sql
from tests.kit.schema import indexes
from tests.kit.waiting import PATIENCE

TABLE = Sql("CREATE TABLE IF NOT EXISTS things (id BIGINT PRIMARY KEY, done BIGINT)")
INDEX = Sql("CREATE INDEX IF NOT EXISTS things_due ON things (id) WHERE done IS NULL")


@pytest.fixture
async def adapter(database_url: str) -> AsyncIterator[Adapter]:
    postgres = database_url.startswith("postgres")
    adapter: Adapter = PostgresAdapter(database_url) if postgres else SqliteAdapter(sqlite_path(database_url))
    await adapter.open()
    yield adapter
    await adapter.close()


async def test_they_run_in_order_and_may_be_repeated(adapter: Adapter, database_url: str) -> None:
    for _ in range(2):
        await make_tables(adapter, [], [TABLE, INDEX])
    assert set(await indexes(database_url, "things")) == {"things_due"}


async def test_one_that_fails_takes_all_of_the_migration_back(adapter: Adapter) -> None:
    with pytest.raises(RequestError):
        await make_tables(adapter, [], [TABLE, Sql("CREATE INDEX IF NOT EXISTS broken ON nowhere (id)")])
    with pytest.raises(RequestError):
        await adapter.fetch(Sql("SELECT id FROM things"))


async def test_processes_that_start_together_take_turns(adapter: Adapter, database_url: str) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*(make_tables(adapter, [], [TABLE, INDEX]) for _ in range(5)))
    assert set(await indexes(database_url, "things")) == {"things_due"}


async def test_an_index_that_is_there_does_not_wait_for_writers(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, lock_timeout=timedelta(seconds=2 * PATIENCE))
    await adapter.open()
    await make_tables(adapter, [], [TABLE, INDEX])
    async with adapter.transaction() as tx, asyncio.timeout(PATIENCE):  # a lock is waited for longer
        await tx.execute(Sql("INSERT INTO things VALUES (1, 1)"))
        await make_tables(adapter, [], [INDEX])
    await adapter.close()
