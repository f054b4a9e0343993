"""Streams: all rows of a read, of one moment, in batches, however the reading ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from maniflex.db.port import Adapter
from maniflex.errors import RequestError
from maniflex.sql.statement import Dialect, Sql
from maniflex.testing.conformance._case import Case, add, endless, sql

_NUMBERS = {
    Dialect.SQLITE: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
    " SELECT i FROM n",
    Dialect.POSTGRES: "SELECT i FROM generate_series(1, CAST(? AS integer)) AS i",
}


def numbers(db: Adapter, most: int) -> Sql:
    """A read of as many rows as wanted, from no table."""
    return sql(db, _NUMBERS[db.dialect], most)


class Streams(Case):
    """What `Adapter.stream` promises."""

    async def test_a_stream_gives_all_rows_in_order_in_batches(self, db: Adapter) -> None:
        batches = [[n for (n,) in rows] async for rows in db.stream(numbers(db, 25), batch=10)]
        assert [len(batch) for batch in batches] == [10, 10, 5]
        assert [n for batch in batches for n in batch] == list(range(1, 26))

    async def test_a_full_last_batch_is_not_followed_by_an_empty_one(self, db: Adapter) -> None:
        batches = [rows async for rows in db.stream(numbers(db, 20), batch=10)]
        assert [len(batch) for batch in batches] == [10, 10]

    async def test_a_stream_of_nothing_gives_no_batch(self, db: Adapter) -> None:
        assert [rows async for rows in db.stream(Sql("SELECT id FROM things"))] == []

    async def test_a_stream_shows_one_moment(self, db: Adapter) -> None:
        for number in range(30):
            await add(db, number, str(number))
        ids: list[int] = []
        async with aclosing(db.stream(Sql("SELECT id FROM things ORDER BY id"), batch=10)) as batches:
            async for rows in batches:
                await db.execute(sql(db, "DELETE FROM things WHERE id >= ?", 20))
                await add(db, 1000 + len(ids), "later")
                ids += [id for (id,) in rows]
        assert ids == list(range(30))

    async def test_writes_and_reads_go_on_beside_a_stream(self, db: Adapter) -> None:
        async with aclosing(db.stream(numbers(db, 1000), batch=1)) as batches:
            await anext(batches)
            await add(db, 1, "one")
            async with db.transaction() as tx:
                await add(tx, 2, "two")
            assert len(await db.fetch(Sql("SELECT id FROM things"))) == 2

    async def test_a_stream_sees_nothing_uncommitted(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await add(tx, 1, "one")
            assert [rows async for rows in db.stream(Sql("SELECT id FROM things"))] == []

    async def test_many_streams_closed_early_leave_nothing_behind(self, db: Adapter) -> None:
        for _ in range(30):  # more than any pool has room for
            async with aclosing(db.stream(numbers(db, 1000), batch=10)) as batches:
                await anext(batches)
        await add(db, 1, "one")
        assert len(await db.fetch(Sql("SELECT id FROM things"))) == 1

    async def test_a_stream_that_is_never_begun_needs_no_closing(self, db: Adapter) -> None:
        streams = [db.stream(numbers(db, 10)) for _ in range(30)]
        for stream in streams:
            await stream.aclose()
        assert len(await db.fetch(numbers(db, 10))) == 10

    async def test_a_cancelled_stream_stops_its_statement(self, db: Adapter) -> None:
        async def read() -> None:
            async for _ in db.stream(endless(db)):
                pass

        for _ in range(3):
            task = asyncio.create_task(read())
            finished_tasks, _ = await asyncio.wait((task,), timeout=0.05)
            assert not finished_tasks
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
        await add(db, 1, "one")

    async def test_a_stream_that_fails_raises_ours(self, db: Adapter) -> None:
        with pytest.raises(RequestError):
            await anext(db.stream(Sql("SELECT nothing FROM nowhere")))
        with pytest.raises(RequestError):
            await anext(db.stream(sql(db, "INSERT INTO things (id, name) VALUES (1, 'x') RETURNING id")))
        assert await db.fetch(Sql("SELECT id FROM things")) == []

    async def test_closing_the_adapter_breaks_a_stream_off(self, db: Adapter) -> None:
        stream = db.stream(numbers(db, 100_000), batch=1)
        await anext(stream)
        closing = asyncio.create_task(db.close())
        with pytest.raises(RequestError):
            [rows async for rows in stream]
        await closing
