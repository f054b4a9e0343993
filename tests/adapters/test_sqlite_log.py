"""The write-ahead log of SQLite stays short, whatever reads beside the writer."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from maniflex.db.sqlite import checkpoints
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.sql.statement import Sql
from tests.kit.overlapping_reads import overlapping_reads
from tests.kit.waiting import PATIENCE

BOUND = 16 * 1024 * 1024
WRITTEN = 48 * 1024 * 1024
PIECE = 128 * 1024
ROWS = Sql("SELECT id, name FROM things WHERE id < 3000 ORDER BY id")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "app.db")


@pytest.fixture
async def db(path: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteAdapter]:
    monkeypatch.setattr(checkpoints, "INTERVAL", 0.02)
    monkeypatch.setattr(checkpoints, "_SHARE", 1)
    adapter = SqliteAdapter(path, durable=False)
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE things (id INTEGER PRIMARY KEY, name BLOB)"))
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT i FROM n"
    await adapter.execute(Sql(f"INSERT INTO things (name) {numbers}"))
    yield adapter
    await adapter.close()


def log_bytes(path: str) -> int:
    return os.stat(f"{path}-wal").st_size


async def write_much(db: SqliteAdapter, path: str, total: int = WRITTEN, pause: float = 0) -> int:
    """Write so many bytes, in short transactions; the longest that the log was."""
    most = 0
    for _ in range(total // PIECE):
        await db.execute(Sql("UPDATE things SET name = randomblob(?) WHERE id = 1", (PIECE,)))
        most = max(most, log_bytes(path))
        if pause:
            await asyncio.sleep(pause)
    return most


async def test_reads_that_overlap_do_not_let_it_grow(db: SqliteAdapter, path: str) -> None:
    with overlapping_reads(path, "things"):
        # Two hundred writes a second: in memory all of it would be written between two tries.
        assert await write_much(db, path, pause=0.005) < BOUND


async def test_streams_that_overlap_do_not_let_it_grow(db: SqliteAdapter, path: str) -> None:
    ended = asyncio.Event()

    async def export() -> None:
        while not ended.is_set():
            async with aclosing(db.stream(ROWS, batch=100)) as batches:
                async for _ in batches:
                    await asyncio.sleep(0)

    exports = [asyncio.create_task(export()) for _ in range(3)]
    most = await write_much(db, path)
    ended.set()
    await asyncio.gather(*exports)
    assert most < BOUND


async def test_a_stream_waits_for_older_ones_while_it_is_long_and_still_reads_all(
    db: SqliteAdapter, path: str
) -> None:
    async with aclosing(db.stream(ROWS, batch=100)) as older:
        await anext(older)
        await write_much(db, path, 8 * 1024 * 1024)
        newer = asyncio.ensure_future(anext(db.stream(ROWS, batch=10_000)))
        async for _ in older:
            assert not newer.done()
    assert len(await asyncio.wait_for(newer, PATIENCE)) == 2999
    await write_much(db, path, 1024 * 1024)
    assert log_bytes(path) < BOUND


async def test_a_reader_that_holds_it_is_told_in_the_log_once_and_it_begins_anew_afterwards(
    db: SqliteAdapter, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoints, "WARN_BYTES", 8 * 1024 * 1024)
    with caplog.at_level(logging.WARNING), closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM things").fetchall()
        assert await write_much(db, path, 20 * 1024 * 1024, pause=0.005) > 16 * 1024 * 1024
    warnings = [record.getMessage() for record in caplog.records if "write-ahead log" in record.getMessage()]
    assert len(warnings) == 1
    assert path in warnings[0]

    await write_much(db, path, 24 * 1024 * 1024)
    assert log_bytes(path) < BOUND


async def test_a_file_that_stayed_large_is_not_taken_for_a_long_log(db: SqliteAdapter, path: str) -> None:
    keeper = checkpoints.LogKeeper(path, asyncio.get_running_loop())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("UPDATE things SET name = randomblob(?)", (4_000,))
        other.execute("COMMIT")
        assert keeper.is_long()
        keeper.look(other)
    assert log_bytes(path) > checkpoints.LONG_BYTES
    assert not keeper.is_long()
