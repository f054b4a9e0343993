"""What streams do beyond the conformance suite: timeouts, lost connections, threads."""

from __future__ import annotations

import threading
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

from maniflex.db.current import ReplicaReader, current_reader
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.errors import RequestError, Timeout
from maniflex.sql.statement import Sql

SLOW = Sql("SELECT pg_sleep(0.04) FROM generate_series(1, 20)")


@pytest.mark.parametrize("pooler", [False, True])
async def test_no_statement_timeout_ends_a_stream(postgres_url: str, pooler: bool) -> None:
    from maniflex.db.postgres.adapter import PostgresAdapter

    short = timedelta(milliseconds=400)
    adapter = PostgresAdapter(
        postgres_url, statement_timeout=short, idle_in_transaction_timeout=short, pooler=pooler, pool_size=1
    )
    await adapter.open()
    try:
        with pytest.raises(Timeout):
            await adapter.fetch(SLOW)
        async with aclosing(adapter.stream(SLOW, batch=20)) as batches:
            assert [len(rows) async for rows in batches] == [20]
        with pytest.raises(Timeout):  # and nothing of it is left on the connection
            await adapter.fetch(SLOW)
    finally:
        await adapter.close()


async def test_a_stream_whose_connection_is_lost_raises_and_the_next_one_works(postgres_url: str) -> None:
    from maniflex.db.postgres.adapter import PostgresAdapter

    adapter = PostgresAdapter(postgres_url, pool_size=2)
    await adapter.open()
    numbers = Sql("SELECT pg_backend_pid() FROM generate_series(1, 1000)")
    try:
        stream = adapter.stream(numbers, batch=10)
        [[pid], *_] = await anext(stream)
        await adapter.fetch(Sql("SELECT pg_terminate_backend($1)", (pid,)))
        with pytest.raises(RequestError):
            [rows async for rows in stream]
        assert sum([len(rows) async for rows in adapter.stream(numbers)]) == 1000
    finally:
        await adapter.close()


async def test_a_stream_reads_from_the_replica(postgres_url: str) -> None:
    from maniflex.db.postgres.replicated import ReplicatedAdapter

    # Names in the address are sent along, after those of the adapter.
    adapter = ReplicatedAdapter(postgres_url, read_url=f"{postgres_url}?search_path=replica")
    await adapter.open()
    try:
        current_reader.set(ReplicaReader())
        [rows] = [rows async for rows in adapter.stream(Sql("SHOW search_path"))]
        assert rows[0][0] == "replica"
    finally:
        await adapter.close()


async def test_a_stream_takes_its_thread_with_it(tmp_path: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "sqlite-stream" in thread.name]

    adapter = SqliteAdapter(str(tmp_path / "app.db"))
    await adapter.open()
    numbers = Sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 99) SELECT i FROM n"
    )
    try:
        async with aclosing(adapter.stream(numbers, batch=10)) as batches:
            await anext(batches)
            [thread] = threads()
        thread.join(10)
        assert sum([len(rows) async for rows in adapter.stream(numbers)]) == 99
        for thread in threads():
            thread.join(10)
        assert threads() == []
    finally:
        await adapter.close()
