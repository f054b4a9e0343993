"""A database that is opened for reading alone: no statement changes it, and nothing is made beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from maniflex import ManiflexError
from maniflex.config import sqlite_path
from maniflex.db.port import Adapter, ReadOnlyDatabase
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.postgres.transaction import PostgresTx
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.sql.statement import Sql
from tests.kit.postgres import fetch_value

WRITES = ("INSERT INTO notes VALUES (2)", "CREATE TABLE others (a integer)", "DELETE FROM notes")


def adapter_for(url: str, *, pooler: bool = False) -> Adapter:
    if url.startswith("postgres"):
        return PostgresAdapter(url, pooler=pooler)
    return SqliteAdapter(sqlite_path(url))


def bytes_below(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def make_table(url: str) -> None:
    adapter = adapter_for(url)
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE notes (a integer)"))
    await adapter.execute(Sql("INSERT INTO notes VALUES (1)"))
    await adapter.close()


@pytest.mark.parametrize("pooler", [False, True])
async def test_reads_are_answered_and_writes_refused(database_url: str, pooler: bool) -> None:
    await make_table(database_url)
    adapter = adapter_for(database_url, pooler=pooler)
    await adapter.open(read_only=True)

    for text in WRITES:
        with pytest.raises(ManiflexError):
            await adapter.execute(Sql(text))
        with pytest.raises(ManiflexError):
            async with adapter.transaction() as tx:
                await tx.execute(Sql(text))

    rows = await adapter.fetch(Sql("SELECT a FROM notes"))
    await adapter.close()
    assert [tuple(row) for row in rows] == [(1,)]


async def test_no_file_is_made_beside_a_sqlite_file_that_is_in_nobodys_use(sqlite_url: str) -> None:
    await make_table(sqlite_url)
    path = Path(sqlite_path(sqlite_url))
    before = bytes_below(path.parent)
    adapter = adapter_for(sqlite_url)
    await adapter.open(read_only=True)

    async with adapter.transaction(read_only=True) as tx:
        assert await tx.fetch(Sql("SELECT a FROM notes")) == [(1,)]

    await adapter.close()
    assert bytes_below(path.parent) == before


async def test_what_another_process_has_just_written_is_seen(sqlite_url: str) -> None:
    await make_table(sqlite_url)
    writer, reader = adapter_for(sqlite_url), adapter_for(sqlite_url)
    await writer.open()
    await writer.execute(Sql("INSERT INTO notes VALUES (2)"))

    await reader.open(read_only=True)
    rows = await reader.fetch(Sql("SELECT a FROM notes"))

    await reader.close()
    await writer.close()
    assert rows == [(1,), (2,)]


async def test_a_schema_that_is_not_there_is_not_made(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, schema="shop")
    await adapter.open(read_only=True)
    await adapter.close()

    text = "SELECT count(*) FROM pg_namespace WHERE nspname = 'shop'"
    assert await fetch_value(postgres_url, text) == 0


WAYS_OUT = (
    "SET TRANSACTION READ WRITE",
    "SET LOCAL transaction_read_only = off",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "SET default_transaction_read_only = off",
    "RESET default_transaction_read_only",
    "RESET ALL",
    "DISCARD ALL",
    "SELECT set_config('default_transaction_read_only', 'off', false)",
    "SELECT set_config('transaction_read_only', 'off', true)",
    "BEGIN READ WRITE",
    "COMMIT",
    "; COMMIT",
    "/* one /* in */ another */ COMMIT",
    "/* one /* in */ SELECT */ COMMIT",
    "-- one\rCOMMIT",
    "/* one /* in */ another */ COMMIT AND CHAIN",
    "; ROLLBACK AND CHAIN",
    "; PREPARE TRANSACTION 'left'",
    "DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; DELETE FROM notes; END $$",
    "DO $$ BEGIN SET TRANSACTION READ WRITE; DELETE FROM notes; END $$",
)


async def stream_all(tx: PostgresTx, sql: Sql) -> None:
    async for _ in tx.stream(sql, 1):
        pass


WAYS_IN: tuple[Callable[[PostgresTx, Sql], Awaitable[object]], ...] = (
    PostgresTx.execute,
    PostgresTx.fetch_one,
    PostgresTx.fetch_named,
    stream_all,
)


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("way_out", WAYS_OUT)
async def test_no_typed_statement_makes_postgres_write_again(
    postgres_url: str, way_out: str, pooler: bool
) -> None:
    await make_table(postgres_url)
    adapter = PostgresAdapter(postgres_url, pooler=pooler, pool_size=1)
    await adapter.open(read_only=True)

    with suppress(ManiflexError):
        await adapter.execute(Sql(way_out))
    with pytest.raises(ManiflexError):
        await adapter.execute(Sql("DELETE FROM notes"))
    for run in WAYS_IN:
        with suppress(ManiflexError):
            async with adapter.transaction() as tx:
                for text in (way_out, "SET TRANSACTION READ WRITE", "DELETE FROM notes"):
                    with suppress(ManiflexError):
                        await run(tx, Sql(text))
                with suppress(ManiflexError):
                    await tx.execute(Sql("DELETE FROM notes"))

    rows = await adapter.fetch(Sql("SELECT a FROM notes"))
    await adapter.close()
    assert [tuple(row) for row in rows] == [(1,)]


WORK = (
    "ANALYZE notes",
    "analyse notes",
    "; /* a /* b */ c */ REINDEX TABLE notes",
    "CLUSTER notes USING notes_index",
    "VACUUM notes",
    "COPY notes TO '/dev/null'",
    "COPY (SELECT 1) TO PROGRAM 'cat'",
)


@pytest.mark.parametrize("text", WORK)
async def test_work_on_postgres_that_changes_no_row_is_refused_too(postgres_url: str, text: str) -> None:
    await make_table(postgres_url)
    adapter = PostgresAdapter(postgres_url)
    await adapter.open()
    await adapter.execute(Sql("CREATE INDEX notes_index ON notes (a)"))
    await adapter.close()
    adapter = PostgresAdapter(postgres_url)
    await adapter.open(read_only=True)

    with pytest.raises(ReadOnlyDatabase):
        await adapter.execute(Sql(text))
    with pytest.raises(ReadOnlyDatabase):
        await anext(adapter.stream(Sql(text)))

    await adapter.close()


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO notes VALUES (2)",
        "CREATE TABLE others (a integer)",
        "PRAGMA user_version = 7",
        "ATTACH DATABASE 'other.db' AS other",
        "VACUUM",
        "VACUUM INTO 'other.db'",
    ],
)
async def test_sqlite_says_that_it_is_open_for_reading_alone(sqlite_url: str, text: str) -> None:
    await make_table(sqlite_url)
    adapter = adapter_for(sqlite_url)
    await adapter.open(read_only=True)

    for run in (adapter.execute, adapter.fetch):
        with pytest.raises(ReadOnlyDatabase, match="open for reading alone; nothing was written"):
            await run(Sql(text))
    with pytest.raises(ReadOnlyDatabase):
        async with adapter.transaction() as tx:
            await tx.execute(Sql("DELETE FROM notes"))

    await adapter.close()


@pytest.mark.parametrize(
    "way_out",
    [
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "ATTACH DATABASE '{path}' AS again",
        "ATTACH DATABASE 'file:{path}?mode=rwc' AS again",
    ],
)
async def test_no_typed_statement_makes_sqlite_write_again(sqlite_url: str, way_out: str) -> None:
    await make_table(sqlite_url)
    adapter = adapter_for(sqlite_url)
    await adapter.open(read_only=True)

    with suppress(ManiflexError):
        await adapter.execute(Sql(way_out.format(path=sqlite_path(sqlite_url))))
    for table in ("notes", "again.notes"):
        with pytest.raises(ManiflexError):
            await adapter.execute(Sql(f"DELETE FROM {table}"))

    rows = await adapter.fetch(Sql("SELECT a FROM notes"))
    await adapter.close()
    assert rows == [(1,)]


async def test_a_sibling_reads_alone_too(database_url: str) -> None:
    await make_table(database_url)
    adapter = adapter_for(database_url)
    await adapter.open(read_only=True)
    sibling = adapter.sibling(patient=True)
    await sibling.open()

    with pytest.raises(ManiflexError):
        await sibling.execute(Sql("DELETE FROM notes"))

    await sibling.close()
    await adapter.close()


@pytest.mark.parametrize("in_block", [False, True])
async def test_large_objects_do_not_stay(postgres_url: str, in_block: bool) -> None:
    adapter = PostgresAdapter(postgres_url)
    await adapter.open(read_only=True)
    statement = Sql("SELECT lo_create(0)")
    with suppress(ManiflexError):  # newer servers refuse it themselves
        if in_block:
            async with adapter.transaction() as tx:
                await tx.fetch(statement)
        else:
            await adapter.fetch(statement)
    await adapter.close()
    assert await fetch_value(postgres_url, "SELECT count(*) FROM pg_largeobject_metadata") == 0
