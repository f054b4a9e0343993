"""Hearing of changes: outages, schemas, connections and threads, beyond the conformance suite."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.watch import Watch
from maniflex.errors import Unavailable
from maniflex.sql.statement import Sql
from maniflex.testing.conformance._background import PATIENCE, Ringing
from tests.kit.private_postgres import PrivatePostgres, private_postgres
from tests.kit.statements import eventually_answers

CONNECTIONS = Sql(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'listening' AND query LIKE 'LISTEN%'"
)
TERMINATE = Sql(CONNECTIONS.text.replace("count(*)", "pg_terminate_backend(pid)"))


def notify(channel: str) -> Sql:
    return Sql("SELECT pg_notify(left($1 || '.' || current_schema(), 63), '')", (channel,))


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "no notifications" in record.message]


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[PostgresAdapter]:
    adapter = PostgresAdapter(postgres_url, application_name="listening")
    await adapter.open()
    yield adapter
    await adapter.close()


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with private_postgres() as server:
        yield server


async def test_after_a_restart_of_the_server_the_wake_comes_by_itself(
    server: PrivatePostgres, caplog: pytest.LogCaptureFixture
) -> None:
    await server.start()
    adapter = PostgresAdapter(server.url)
    await adapter.open()
    ringing = Ringing()
    async with adapter.listen("work", ringing):
        await ringing.next()
        for outage in (1, 2):
            await server.restart()
            await ringing.next()  # nobody notified: something may have been missed
            assert len(outages(caplog)) == outage
            await adapter.write(notify("work"))
            await ringing.next()
        assert ringing.times == 5
    await adapter.close()


async def test_listening_begins_while_the_server_is_away(server: PrivatePostgres) -> None:
    await server.start()
    adapter = PostgresAdapter(server.url)
    await adapter.open()
    await server.stop()
    ringing = Ringing()
    async with adapter.listen("work", ringing):
        assert ringing.times == 0
        await server.start()
        await ringing.next()
        await adapter.write(notify("work"))
        await ringing.next()
    await adapter.close()


async def test_a_listening_connection_that_is_terminated_is_replaced(
    postgres: PostgresAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    ringing = Ringing()
    async with postgres.listen("work", ringing):
        await ringing.next()
        for _ in range(2):
            await postgres.fetch(TERMINATE)
            await ringing.next()
            await postgres.write(notify("work"))
            await ringing.next()
    assert len(outages(caplog)) == 2
    assert all(record.levelno <= logging.WARNING for record in caplog.records)


async def test_all_who_listen_share_one_connection_beside_the_pool(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, application_name="listening", pool_size=1)
    await adapter.open()
    first, second = Ringing(), Ringing()
    async with adapter.listen("work", first), adapter.listen("mail", second), adapter.transaction() as tx:
        [[connections]] = await tx.fetch(CONNECTIONS)
        assert connections == 1
    await eventually_answers(adapter, CONNECTIONS, 0)
    await adapter.close()


async def test_a_channel_that_nobody_wants_any_more_is_left(postgres: PostgresAdapter) -> None:
    kept = Ringing()
    last = Sql(CONNECTIONS.text.replace("LISTEN%", "UNLISTEN%"))
    async with postgres.listen("work", kept):
        async with postgres.listen("mail", Ringing()):
            pass
        await eventually_answers(postgres, last, 1)
        await kept.next()
        await postgres.write(notify("work"))
        await kept.next()


async def test_closing_the_adapter_closes_the_listening_connection(postgres: PostgresAdapter) -> None:
    async with postgres.listen("work", Ringing()):
        await postgres.close()
        await postgres.open()
        await eventually_answers(postgres, CONNECTIONS, 0)


@pytest.mark.parametrize("channel", ['odd "name"', "naïve", "x" * 200, "Work; DROP TABLE things"])
async def test_any_text_is_a_channel(postgres: PostgresAdapter, channel: str) -> None:
    ringing = Ringing()
    async with postgres.listen(channel, ringing):
        await ringing.next()
        await postgres.write(notify(channel))
        await ringing.next()


async def test_two_schemas_do_not_wake_each_other(postgres_url: str) -> None:
    ours, theirs = (PostgresAdapter(postgres_url, schema=schema) for schema in ("ours", "theirs"))
    await ours.open()
    await theirs.open()
    work, fence = Ringing(), Ringing()
    async with ours.listen("work", work), ours.listen("fence", fence):
        await asyncio.gather(work.next(), fence.next())
        await theirs.write(notify("work"))
        await ours.write(notify("fence"))  # what the server was told first it passes on first
        await fence.next()
        assert work.times == 1
        await ours.write(notify("work"))
        await work.next()
    await ours.close()
    await theirs.close()


async def test_behind_a_pooler_nobody_listens(postgres_url: str) -> None:
    adapter = PostgresAdapter(postgres_url, pooler=True)
    await adapter.open()
    ringing = Ringing()
    async with adapter.listen("work", ringing):
        await adapter.write(notify("work"))
        [[connections]] = await adapter.fetch(
            Sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        )
    assert (ringing.times, connections) == (0, 1)
    await adapter.close()


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteAdapter]:
    adapter = SqliteAdapter(str(tmp_path / "app.db"))
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY)"))
    yield adapter
    await adapter.close()


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "maniflex-sqlite-watch"]


async def test_a_commit_of_another_process_wakes(sqlite: SqliteAdapter, tmp_path: Path) -> None:
    ringing = Ringing()
    script = f"import sqlite3; c = sqlite3.connect({str(tmp_path / 'app.db')!r});"
    async with sqlite.listen("work", ringing):
        await ringing.next()
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script + "c.execute('INSERT INTO things VALUES (1)'); c.commit()"],
            check=True,
        )
        await ringing.next()


async def test_reads_and_writes_that_change_nothing_wake_nobody(sqlite: SqliteAdapter) -> None:
    ringing = Ringing()
    async with sqlite.listen("work", ringing):
        await ringing.next()
        for _ in range(20):
            await sqlite.execute(Sql("UPDATE things SET id = 2 WHERE id = 1"))
            await sqlite.fetch(Sql("SELECT id FROM things"))
        later = Ringing()
        async with sqlite.listen("work", later):  # woken by the look that comes after all those
            await later.next()
        assert ringing.times == 1


async def test_one_thread_watches_for_all_and_ends_with_the_last(sqlite: SqliteAdapter) -> None:
    async with sqlite.listen("work", Ringing()), sqlite.listen("mail", Ringing()):
        [thread] = watchers()
    thread.join(PATIENCE)
    assert watchers() == []


async def test_closing_the_adapter_ends_the_watching(sqlite: SqliteAdapter) -> None:
    async with sqlite.listen("work", Ringing()):
        await sqlite.close()
        assert watchers() == []


async def test_trouble_with_the_file_is_counted_logged_once_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "app.db"
    attempts = 0

    def connect() -> sqlite3.Connection:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise sqlite3.OperationalError("database is locked")
        return sqlite3.connect(path)

    watch, ringing = Watch(connect, asyncio.get_running_loop()), Ringing()
    listener = watch.add(ringing)
    await ringing.next()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE things (id INTEGER)")
    await ringing.next()
    watch.remove(listener)
    watch.join()
    assert watch.errors == 2
    assert len([record for record in caplog.records if "unnoticed" in record.message]) == 1


async def test_a_file_that_vanishes_is_not_made_anew(sqlite: SqliteAdapter, tmp_path: Path) -> None:
    ringing = Ringing()
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    async with sqlite.listen("work", ringing):
        [thread] = watchers()
    thread.join(PATIENCE)
    assert (ringing.times, os.listdir(tmp_path)) == (0, [])


async def test_a_private_database_has_siblings_only_while_it_is_open() -> None:
    adapter = SqliteAdapter(":memory:")
    with pytest.raises(Unavailable):
        adapter.sibling()
