"""What is SQLite's own: files, threads, locks between processes, and commits that are shared."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from maniflex import Server
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import compare_decimals
from maniflex.db.sqlite.threads import Statement
from maniflex.db.sqlite.writer import Writer
from maniflex.errors import (
    ConfigError,
    DatabaseError,
    ForeignKeyViolation,
    Timeout,
    Unavailable,
)
from maniflex.sql.statement import LossyText, Sql
from tests.kit.processes import run_program
from tests.kit.waiting import PATIENCE

SOON = timedelta(milliseconds=50)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000000)"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "app.db")


@pytest.fixture
async def db(path: str) -> AsyncIterator[SqliteAdapter]:
    adapter = await opened(SqliteAdapter(path))
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE)"))
    yield adapter
    await adapter.close()


async def opened(adapter: SqliteAdapter) -> SqliteAdapter:
    await adapter.open()
    return adapter


def insert(name: str) -> Sql:
    return Sql("INSERT INTO things (name) VALUES (?)", (name,))


def files(path: str) -> list[str]:
    """What there is of a database: itself, its log, its shared index."""
    return [path + suffix for suffix in ("", "-wal", "-shm") if os.path.exists(path + suffix)]


def log_size(path: str) -> int:
    return os.path.getsize(path + "-wal")


async def count(adapter: SqliteAdapter) -> int:
    [[found]] = await adapter.fetch(Sql("SELECT count(*) FROM things"))
    return int(found)


# ── opening and closing ──────────────────────────────────────────────────────────────────────────


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        await SqliteAdapter(str(tmp_path / "nowhere" / "app.db")).open()


async def test_a_directory_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        await SqliteAdapter(str(tmp_path)).open()


async def test_a_file_that_is_no_database_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear reader, " * 500)
    with pytest.raises(DatabaseError, match="cannot be opened") as caught:
        await SqliteAdapter(str(path)).open()
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


def test_at_least_one_reader_is_needed() -> None:
    with pytest.raises(ConfigError):
        SqliteAdapter("app.db", readers=0)


def test_the_label_is_the_name_of_the_file() -> None:
    assert SqliteAdapter("/srv/data/app.db").label == "sqlite:app.db"
    assert SqliteAdapter(":memory:").label == "sqlite::memory:"


async def test_it_is_unavailable_before_it_is_opened(path: str) -> None:
    with pytest.raises(Unavailable):
        await SqliteAdapter(path).ping()


async def test_opening_twice_is_one_opening_and_a_closed_one_opens_again(db: SqliteAdapter) -> None:
    await db.open()
    await db.execute(insert("kept"))
    await db.close()
    await db.open()
    assert await count(db) == 1


async def test_all_threads_end_when_it_closes(path: str) -> None:
    before = set(threading.enumerate())
    adapter = await opened(SqliteAdapter(path))
    async with adapter.transaction(read_only=True):
        await asyncio.gather(*(adapter.ping() for _ in range(5)))
    await adapter.close()
    assert not [thread for thread in set(threading.enumerate()) - before if "sqlite" in thread.name]


async def test_closing_folds_the_log_into_the_file(db: SqliteAdapter, path: str) -> None:
    await db.execute(insert("kept"))
    await db.close()
    assert files(path) == [path]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM things").fetchall() == [("kept",)]


async def test_a_transaction_entered_after_closing_is_unavailable(db: SqliteAdapter) -> None:
    block = db.transaction()
    await db.close()
    with pytest.raises(Unavailable):
        async with block:
            pytest.fail("it began")


async def test_closing_waits_for_an_open_transaction(db: SqliteAdapter) -> None:
    async with db.transaction() as tx:
        closing = asyncio.create_task(db.close())
        await asyncio.sleep(0)
        await tx.execute(insert("late"))
    await closing
    await db.open()
    assert await count(db) == 1


async def test_writes_are_flushed_to_disk_by_default(db: SqliteAdapter, tmp_path: Path) -> None:
    relaxed = await opened(SqliteAdapter(str(tmp_path / "relaxed.db"), durable=False))
    full, normal = 2, 1
    assert await db.write(Sql("PRAGMA synchronous")) == [(full,)]
    assert await relaxed.write(Sql("PRAGMA synchronous")) == [(normal,)]
    assert await db.fetch(Sql("PRAGMA journal_mode")) == [("wal",)]
    await relaxed.close()


async def test_many_adapters_may_open_one_new_file_at_once(path: str) -> None:
    adapters = [SqliteAdapter(path) for _ in range(6)]
    await asyncio.gather(*(adapter.open() for adapter in adapters))
    await asyncio.gather(*(adapter.close() for adapter in adapters))


# ── :memory: ─────────────────────────────────────────────────────────────────────────────────────


async def test_two_memory_databases_share_nothing() -> None:
    one, other = await opened(SqliteAdapter(":memory:")), await opened(SqliteAdapter(":memory:"))
    await one.execute(Sql("CREATE TABLE things (id INTEGER)"))
    with pytest.raises(DatabaseError):
        await count(other)
    assert await count(one) == 0
    await one.close()
    await other.close()


async def test_a_memory_database_leaves_no_file(path: str) -> None:
    adapter = await opened(SqliteAdapter(":memory:"))
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER)"))
    [[_, _, file]] = await adapter.fetch(Sql("PRAGMA database_list"))
    assert files(file)
    await adapter.close()
    assert files(file) == []


LEAVER = """
import asyncio
from maniflex.db.sqlite.adapter import SqliteAdapter, Sql

async def main():
    adapter = SqliteAdapter(":memory:")
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER)"))
    print((await adapter.fetch(Sql("PRAGMA database_list")))[0][2])

asyncio.run(main())
"""


def test_a_memory_database_leaves_no_file_when_the_process_just_ends() -> None:
    file = subprocess.run([sys.executable, "-c", LEAVER], check=True, capture_output=True, text=True).stdout
    assert file.strip().endswith(".db")
    assert files(file.strip()) == []


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_read_cannot_write_and_says_so(db: SqliteAdapter) -> None:
    with pytest.raises(DatabaseError, match="only reads are allowed"):
        await db.fetch(insert("sneaky"))
    assert await count(db) == 0


async def test_two_statements_in_one_text_are_refused(db: SqliteAdapter) -> None:
    with pytest.raises(DatabaseError):
        await db.execute(Sql("DELETE FROM things; DELETE FROM things"))


async def test_slow_reads_on_every_thread_can_be_cancelled(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, readers=2))
    slow = [asyncio.create_task(adapter.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n"))) for _ in range(4)]
    waiting = asyncio.create_task(adapter.fetch(Sql("SELECT 2")))  # nobody knows yet that it is quick
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.shield(waiting)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    async with asyncio.timeout(PATIENCE):
        await waiting
        for _ in range(100):
            await adapter.ping()
    await adapter.close()


async def test_quick_reads_do_not_wait_for_slow_ones(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, readers=3))
    known = Sql("SELECT ?", (1,))
    await adapter.fetch(known)
    # Texts of their own: none of them is known to be slow.
    slow = [
        asyncio.create_task(adapter.fetch(Sql(f"{ENDLESS} SELECT count(*) + {number} FROM n")))
        for number in range(40)
    ]
    async with asyncio.timeout(PATIENCE):
        for _ in range(200):
            assert await adapter.fetch(known) == [(1,)]
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(adapter.fetch(Sql(f"SELECT {number}")) for number in range(100)))
    await adapter.close()


async def test_a_text_that_turns_out_slow_does_not_keep_the_last_thread(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, readers=2))
    some = ENDLESS.replace("1000000000000", "?")
    count_to, known = f"{some} SELECT count(*) FROM n", Sql("SELECT ?", (1,))
    for _ in range(2):
        await adapter.fetch(Sql(count_to, (10,)))
        await adapter.fetch(known)
    slow = [asyncio.create_task(adapter.fetch(Sql(count_to, (300_000,)))) for _ in range(6)]
    outcomes = await asyncio.gather(*slow, *(adapter.fetch(known) for _ in range(50)))
    assert outcomes == [[(300_000,)]] * 6 + [[(1,)]] * 50
    await adapter.close()


async def test_a_read_whose_turn_does_not_come_in_time_is_refused_and_never_runs(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, readers=1, pool_timeout=timedelta(milliseconds=200)))
    slow = asyncio.create_task(adapter.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n")))
    await asyncio.wait([slow], timeout=0.05)
    async with asyncio.timeout(PATIENCE):
        late = await asyncio.gather(
            *(adapter.fetch(Sql("SELECT 2")) for _ in range(20)), return_exceptions=True
        )
    assert {type(error) for error in late} == {Unavailable}
    assert not slow.done()
    slow.cancel()
    await asyncio.wait([slow])
    async with asyncio.timeout(PATIENCE):
        assert await adapter.fetch(Sql("SELECT 2")) == [(2,)]
    assert not adapter._open_engine().readers._line
    await adapter.close()


async def test_closing_answers_reads_that_were_deferred(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, readers=2, statement_timeout=SOON))
    slow = [adapter.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n")) for _ in range(3)]
    rest = [adapter.fetch(Sql(f"SELECT {number}")) for number in range(20)]
    reading = asyncio.gather(*slow, *rest, return_exceptions=True)
    await asyncio.wait([reading], timeout=0.02)
    async with asyncio.timeout(PATIENCE):
        await adapter.close()
        outcomes = await reading
    assert [type(outcome) for outcome in outcomes] == [Timeout] * 3 + [list] * 20


async def test_an_interrupt_never_hits_the_next_read(db: SqliteAdapter) -> None:
    async def cut_short(milliseconds: int) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(milliseconds / 1000):
                await db.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n"))

    async def steady() -> None:
        for _ in range(200):
            assert await count(db) == 0

    await asyncio.gather(*(cut_short(number % 20) for number in range(40)), *(steady() for _ in range(4)))


async def test_a_read_that_runs_too_long_is_ended(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, statement_timeout=SOON))
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):
            with pytest.raises(Timeout, match="too long"):
                await adapter.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n"))
            await adapter.ping()
        with pytest.raises(Timeout, match="too long"):
            async with adapter.transaction(read_only=True) as tx:
                await tx.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n"))
    await adapter.close()


async def test_slow_reads_on_every_thread_end_and_let_the_others_read(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, readers=2, statement_timeout=SOON))
    slow = [adapter.fetch(Sql(f"{ENDLESS} SELECT count(*) FROM n")) for _ in range(6)]
    quick = [adapter.fetch_one(Sql("SELECT 1")) for _ in range(20)]
    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(*slow, *quick, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Timeout] * 6 + [tuple] * 20
    await adapter.close()


async def test_a_statement_may_take_as_long_as_it_takes_without_a_limit(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, statement_timeout=timedelta(0)))
    some = ENDLESS.replace("1000000000000", "300000")
    assert await adapter.fetch(Sql(f"{some} SELECT count(*) FROM n")) == [(300000,)]
    await adapter.close()


def test_a_limit_cannot_be_negative() -> None:
    with pytest.raises(ConfigError):
        SqliteAdapter("app.db", statement_timeout=timedelta(seconds=-1))


async def test_the_limit_of_a_server_holds_on_both_databases(database_url: str) -> None:
    server = Server(database_url, statement_timeout=0.05)
    endless = f"{ENDLESS} SELECT count(*) FROM n"
    async with server.lifespan(), asyncio.timeout(PATIENCE):
        with pytest.raises(Timeout):
            await server.raw_query(endless)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("9", "10", -1),
        ("1.50", "1.5", 0),
        ("-2", "-10", 1),
        ("0.1", "0.10000000000000000000000001", -1),
        ("12345678901234567890123", "12345678901234567890122", 1),
        ("7", "seven", -1),
        ("NaN", "7", 1),
        ("NaN", "NaN", 0),
        ("sNaN", "", 1),
    ],
)
def test_decimal_texts_compare_by_value(left: str, right: str, expected: int) -> None:
    assert compare_decimals(left, right) == expected
    assert compare_decimals(right, left) == -expected


async def test_decimal_columns_sort_and_filter_by_value(db: SqliteAdapter) -> None:
    await db.execute(Sql("CREATE TABLE prices (price TEXT COLLATE decimal UNIQUE)"))
    await db.execute(Sql("INSERT INTO prices VALUES ('10.5'), ('9'), ('-3'), ('100')"))
    assert await db.fetch(Sql("SELECT price FROM prices ORDER BY price")) == [
        ("-3",),
        ("9",),
        ("10.5",),
        ("100",),
    ]
    assert await db.fetch(Sql("SELECT price FROM prices WHERE price = ?", ("9.00",))) == [("9",)]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_answered_write_is_visible_to_other_connections(db: SqliteAdapter, path: str) -> None:
    other = sqlite3.connect(path)
    for number in range(1, 6):
        await db.execute(insert(str(number)))
        assert other.execute("SELECT count(*) FROM things").fetchone() == (number,)
    other.close()


async def test_writes_that_wait_together_share_a_commit(db: SqliteAdapter, path: str) -> None:
    before = log_size(path)
    await asyncio.gather(*(db.execute(insert(str(number))) for number in range(100)))
    page_and_header = 4096 + 24
    assert await count(db) == 100
    assert (log_size(path) - before) / page_and_header < 50


async def test_a_failure_within_a_shared_commit_is_its_own(db: SqliteAdapter) -> None:
    [[pages]] = await db.write(Sql("PRAGMA page_count"))
    await db.write(Sql(f"PRAGMA max_page_count = {pages + 4}"))
    names = ["small 1", "small 2", "x" * 100_000, "small 3", "small 1"]
    outcomes = await asyncio.gather(*(db.execute(insert(name)) for name in names), return_exceptions=True)
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["int", "int", "Unavailable", "int", "ConstraintViolation"]
    assert await db.fetch(Sql("SELECT name FROM things ORDER BY id")) == [
        ("small 1",),
        ("small 2",),
        ("small 3",),
    ]


async def test_a_constraint_checked_at_commit_fails_only_its_own_write(db: SqliteAdapter) -> None:
    await db.execute(
        Sql("CREATE TABLE notes (thing INTEGER REFERENCES things (id) DEFERRABLE INITIALLY DEFERRED)")
    )
    await db.execute(Sql("INSERT INTO things (id, name) VALUES (1, 'one')"))
    note = "INSERT INTO notes VALUES (?)"
    outcomes = await asyncio.gather(
        *(db.execute(Sql(note, (thing,))) for thing in (1, 1, 9, 1)), return_exceptions=True
    )
    assert [outcomes[0], outcomes[1], outcomes[3]] == [1, 1, 1]
    assert isinstance(outcomes[2], ForeignKeyViolation)
    assert len(await db.fetch(Sql("SELECT thing FROM notes"))) == 3


async def test_statements_that_refuse_transactions_run_among_writes(db: SqliteAdapter) -> None:
    writes = [db.execute(insert(str(number))) for number in range(20)]
    await asyncio.gather(*writes[:10], db.execute(Sql("VACUUM")), *writes[10:])
    assert await count(db) == 20


async def test_creating_a_table_touches_no_rows(db: SqliteAdapter) -> None:
    await db.execute(insert("one"))
    assert await db.execute(Sql("CREATE TABLE others (id INTEGER)")) == 0


async def test_a_write_that_runs_too_long_is_interrupted_and_undone(db: SqliteAdapter) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await db.execute(Sql(f"{ENDLESS} INSERT INTO things (name) SELECT 'n' || i FROM n"))
    async with asyncio.timeout(PATIENCE):
        await db.execute(insert("next"))
    assert await count(db) == 1


ENDLESS_INSERT = Sql(f"{ENDLESS} INSERT INTO things (name) SELECT 'n' || i FROM n")


@pytest.fixture
async def hasty(path: str) -> AsyncIterator[SqliteAdapter]:
    adapter = await opened(SqliteAdapter(path, statement_timeout=SOON))
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE)"))
    yield adapter
    await adapter.close()


async def test_a_write_in_the_way_of_others_is_ended_and_undone(hasty: SqliteAdapter) -> None:
    async def transaction() -> None:
        async with hasty.transaction() as tx:
            await tx.execute(insert("undone"))
            with pytest.raises(Timeout, match="too long"):
                await tx.execute(ENDLESS_INSERT)
            raise Timeout("of the block")

    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(
            transaction(), hasty.execute(insert("waiting")), return_exceptions=True
        )
    assert [str(outcomes[0]), outcomes[1]] == ["of the block", 1]
    assert await count(hasty) == 1


async def test_a_write_that_takes_too_long_fails_alone_among_those_it_shared_a_commit_with(
    hasty: SqliteAdapter,
) -> None:
    async with hasty.transaction():
        waiting = [hasty.execute(sql) for sql in (insert("one"), ENDLESS_INSERT, insert("two"))]
        together = asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        outcomes = await together
    assert [outcomes[0], type(outcomes[1]), outcomes[2]] == [1, Timeout, 1]
    assert await count(hasty) == 2


async def test_a_long_write_that_is_in_nobodys_way_is_let_finish(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, statement_timeout=timedelta(milliseconds=1)))
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE)"))
    some = ENDLESS_INSERT.text.replace("1000000000000", "50000")
    async with adapter.transaction() as tx:
        assert await tx.execute(Sql(some)) == 50_000
        await tx.execute(Sql("CREATE INDEX names ON things (name)"))
    await adapter.close()


async def test_a_cancellation_during_an_after_commit_call_stops_none_of_them(db: SqliteAdapter) -> None:
    reached, release, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        await release.wait()

    async def work() -> None:
        async with db.transaction() as tx:
            await tx.execute(insert("one"))
            tx.after_commit(slow)
            tx.after_commit(told.set)

    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(db) == 1
    release.set()
    async with asyncio.timeout(PATIENCE):
        await told.wait()


async def test_closing_waits_for_after_commit_calls(db: SqliteAdapter) -> None:
    reached, release, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        await release.wait()

    async def work() -> None:
        async with db.transaction() as tx:
            tx.after_commit(slow)
            tx.after_commit(told.set)

    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(release.set)
    await db.close()
    assert told.is_set()


async def test_a_cancellation_during_commit_is_raised_after_it(db: SqliteAdapter) -> None:
    seen: list[str] = []

    async def work() -> None:
        async with db.transaction() as tx:
            tx.after_commit(lambda: seen.append("committed"))
            await tx.execute(insert("one"))
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert (seen, await count(db)) == (["committed"], 1)


# ── locks ────────────────────────────────────────────────────────────────────────────────────────


async def test_those_who_wait_for_the_writer_time_out(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, lock_timeout=SOON))
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)"))
    async with adapter.transaction() as tx:
        await tx.execute(insert("holder"))
        waiting = [adapter.execute(insert("waiter")) for _ in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Timeout] * 3
        with pytest.raises(Timeout):
            async with adapter.transaction():
                pytest.fail("it began")
        assert await count(adapter) == 0
    await adapter.execute(insert("after"))
    assert await count(adapter) == 2
    await adapter.close()


async def test_a_lock_held_by_another_process_is_a_timeout(path: str) -> None:
    adapter = await opened(SqliteAdapter(path, lock_timeout=SOON))
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Timeout) as caught:
        await adapter.execute(insert("one"))
    assert "locked" not in str(caught.value)
    with pytest.raises(Timeout):
        async with adapter.transaction():
            pytest.fail("it began")
    outcomes = await asyncio.gather(
        *(adapter.execute(insert("many")) for _ in range(5)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {Timeout}
    other.execute("ROLLBACK")
    other.close()
    await adapter.execute(insert("two"))
    assert await count(adapter) == 1
    await adapter.close()


async def test_two_adapters_on_one_file_lose_no_increment(db: SqliteAdapter, path: str) -> None:
    other = await opened(SqliteAdapter(path))
    await db.execute(Sql("CREATE TABLE counters (n INTEGER)"))
    await db.execute(Sql("INSERT INTO counters VALUES (0)"))
    step = Sql("UPDATE counters SET n = n + 1")

    async def in_transaction(adapter: SqliteAdapter) -> None:
        async with adapter.transaction() as tx:
            [[n]] = await tx.fetch(Sql("SELECT n FROM counters"))
            await tx.execute(Sql("UPDATE counters SET n = ?", (n + 1,)))

    for adapter in (db, other) * 10:
        await asyncio.gather(db.execute(step), other.execute(step), in_transaction(adapter))
    assert await db.fetch(Sql("SELECT n FROM counters")) == [(60,)]
    await other.close()


WRITER = """
import asyncio, sys
from maniflex.db.sqlite.adapter import SqliteAdapter, Sql

async def main():
    adapter = SqliteAdapter(sys.argv[1])
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY)"))

    async def write(first):
        for number in range(first, 10**9, 8):
            await adapter.execute(Sql("INSERT INTO things VALUES (?)", (number,)))
            print(number, flush=True)

    await asyncio.gather(*(write(first) for first in range(8)))

asyncio.run(main())
"""


def answered_before_the_kill(path: str) -> set[int]:
    """Let another process write, kill it in the middle, and give the ids it had answers for."""
    with run_program(WRITER, path) as writer:
        lines = [writer.hear() for _ in range(200)]
        writer.process.kill()
        return {int(line) for line in (*lines, *writer.hear_rest())}


async def test_every_answered_write_survives_a_killed_process(path: str) -> None:
    answered = answered_before_the_kill(path)

    adapter = await opened(SqliteAdapter(path))
    stored = {id for (id,) in await adapter.fetch(Sql("SELECT id FROM things"))}
    assert answered <= stored
    assert await adapter.fetch(Sql("PRAGMA integrity_check")) == [("ok",)]
    await adapter.close()


async def test_a_reader_that_is_relieved_when_it_is_done_already_leaves_nothing_undone(
    tmp_path: Path,
) -> None:
    adapter = SqliteAdapter(str(tmp_path / "race.db"), readers=2)
    await adapter.open()
    await adapter.fetch(Sql("SELECT 1"))
    readers = adapter._open_engine().readers
    # As when the thread ends its statement while it is being found too slow.
    readers._relieve(
        Statement("SELECT 1", (), sqlite3.Cursor.fetchall, asyncio.get_running_loop().create_future())
    )

    async with asyncio.timeout(PATIENCE):
        assert await adapter.fetch(Sql("SELECT 2")) == [(2,)]
    await adapter.close()


class Moody(sqlite3.Connection):
    """A connection that cannot be told how to commit."""

    refused: ClassVar[list[str]] = []

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA synchronous") and len(self.refused) < 2:
            self.refused.append(sql)
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *args)


async def test_a_connection_that_cannot_be_told_how_to_commit_is_replaced(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            tmp_path / "x.db", factory=Moody, isolation_level=None, check_same_thread=False
        )

    writer = Writer(
        connect,
        asyncio.get_running_loop(),
        begin="BEGIN IMMEDIATE",
        lock_timeout=timedelta(seconds=5),
        statement_timeout=0,
        durable=True,
    )
    await writer.write("CREATE TABLE t (v)", (), sqlite3.Cursor.fetchall)
    async with asyncio.timeout(PATIENCE):
        for value in range(3):
            await writer.write(LossyText("INSERT INTO t VALUES (?)"), (value,), sqlite3.Cursor.fetchall)
        rows = await writer.write("SELECT v FROM t", (), sqlite3.Cursor.fetchall)
    assert rows == [(0,), (1,), (2,)]
    assert len(Moody.refused) == 2
    writer.stop()
    writer.join()
