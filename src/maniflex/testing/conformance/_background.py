"""What durable work needs: batches, an adapter for another thread, and a hint that something changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from maniflex.db.port import Adapter, Executor, Row
from maniflex.errors import ConstraintViolation, DatabaseError, RequestError, TransactionError, Unavailable
from maniflex.sql.statement import Sql, by_dialect
from maniflex.testing.conformance._case import Case, add, endless, names, sql

CHANNEL = "things"
PATIENCE = 10.0


def inserts(db: Executor, *ids: int) -> list[Sql]:
    text = "INSERT INTO things (id, name) VALUES (?, ?) RETURNING id"
    return [sql(db, text, id, str(id)) for id in ids]


def tuples(batch: list[Any]) -> list[list[tuple[Any, ...]]]:
    return [[tuple(row) for row in rows] for rows in batch]


class Batches(Case):
    """Several statements, one transaction."""

    async def test_a_batch_gives_the_rows_of_each_statement(self, db: Adapter) -> None:
        statements = [
            *inserts(db, 1, 2),
            Sql("UPDATE things SET amount = 5"),
            Sql("SELECT name, amount FROM things ORDER BY id"),
            Sql("SELECT id FROM things WHERE id = 9"),
        ]
        assert tuples(await db.batch(statements)) == [[(1,)], [(2,)], [], [("1", 5), ("2", 5)], []]
        assert await names(db) == ["1", "2"]

    async def test_a_batch_of_one_or_none_is_fine(self, db: Adapter) -> None:
        assert await db.batch([]) == []
        assert tuples(await db.batch(inserts(db, 1))) == [[(1,)]]

    async def test_a_failing_statement_takes_the_whole_batch_back(self, db: Adapter) -> None:
        await add(db, 1, "one")
        with pytest.raises(ConstraintViolation) as caught:
            await db.batch([*inserts(db, 2, 1, 3)])
        assert (caught.value.table, caught.value.columns) == ("things", ("id",))
        with pytest.raises(DatabaseError):
            await db.batch([*inserts(db, 4), Sql("SELECT nonsense FROM nowhere")])
        assert await names(db) == ["one"]

    async def test_a_function_in_a_batch_makes_a_statement_of_the_rows_so_far(self, db: Adapter) -> None:
        def following(rows: Sequence[list[Row]]) -> Sql | None:
            return inserts(db, rows[-1][0][0] + 1)[0] if len(rows) < 3 else None

        rows = await db.batch([*inserts(db, 1), following, following, following])
        assert tuples(rows) == [[(1,)], [(2,)], [(3,)], []]
        async with db.transaction() as tx:
            assert tuples(await tx.batch([*inserts(db, 4), following])) == [[(4,)], [(5,)]]
        assert await names(db) == ["1", "2", "3", "4", "5"]

    async def test_a_function_that_fails_takes_the_whole_batch_back(self, db: Adapter) -> None:
        def fail(rows: Sequence[list[Row]]) -> Sql | None:
            raise ZeroDivisionError

        with pytest.raises((ZeroDivisionError, DatabaseError)):
            await db.batch([*inserts(db, 1), fail])
        await db.batch(inserts(db, 2))
        assert await names(db) == ["2"]

    async def test_a_batch_cannot_end_its_transaction(self, db: Adapter) -> None:
        with pytest.raises(DatabaseError):
            await db.batch([*inserts(db, 1), Sql("COMMIT"), *inserts(db, 2)])
        assert await names(db) == []

    async def test_batches_and_writes_at_once_fail_each_for_itself(self, db: Adapter) -> None:
        await add(db, 1000, "there")

        def work(number: int) -> Coroutine[Any, Any, object]:
            match number % 4:
                case 0:  # refused at its last statement
                    return db.batch(inserts(db, 10 * number, 10 * number + 1, 1000))
                case 1:  # refused as SQL, which is not the database's way to refuse a row
                    return db.batch([*inserts(db, 10 * number), Sql("SELECT nonsense FROM nowhere")])
                case 2:
                    return db.batch(inserts(db, 10 * number, 10 * number + 1))
                case _:
                    return add(db, 10 * number, str(10 * number))

        outcomes = await asyncio.gather(*(work(number) for number in range(60)), return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [ConstraintViolation, DatabaseError, list, type(None)] * 15
        numbers = {10 * n for n in range(60) if n % 4 > 1} | {10 * n + 1 for n in range(60) if n % 4 == 2}
        assert set(await names(db)) == {"there", *map(str, numbers)}

    async def test_a_batch_in_a_transaction_is_part_of_it(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await add(tx, 1, "1")
            assert tuples(await tx.batch([*inserts(tx, 2), Sql("SELECT count(*) FROM things")])) == [
                [(2,)],
                [(2,)],
            ]
            assert await tx.batch([]) == []
            assert await names(db) == []
        assert await names(db) == ["1", "2"]

    async def test_a_failed_batch_ends_its_transaction(self, db: Adapter) -> None:
        async def careless() -> None:
            async with db.transaction() as tx:
                with pytest.raises(ConstraintViolation):
                    await tx.batch(inserts(tx, 1, 1))
                with pytest.raises(DatabaseError, match="has failed"):
                    await tx.batch(inserts(tx, 2))

        with pytest.raises(TransactionError):
            await careless()
        assert await names(db) == []

    async def test_a_batch_needs_a_transaction_that_is_open(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            pass
        with pytest.raises(DatabaseError):
            await tx.batch(inserts(tx, 1, 2))

    async def test_a_cancelled_batch_leaves_nothing_and_the_adapter_usable(self, db: Adapter) -> None:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03):
                    await db.batch([*inserts(db, 1), endless(db), *inserts(db, 2)])
        await add(db, 3, "three")
        assert await names(db) == ["three"]

    async def test_a_storm_of_cancelled_batches_keeps_each_whole(self, db: Adapter) -> None:
        tasks = [asyncio.create_task(db.batch(inserts(db, 2 * n, 2 * n + 1))) for n in range(60)]
        for turn, task in enumerate(tasks):
            if turn % 2:
                await db.ping()
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        numbers = {int(name) for name in await names(db)}
        assert all(2 * n in numbers for n, outcome in enumerate(outcomes) if isinstance(outcome, list))
        assert {n // 2 for n in numbers if n % 2 == 0} == {n // 2 for n in numbers if n % 2}

    async def test_a_closed_adapter_runs_no_batch(self, db: Adapter) -> None:
        await db.close()
        with pytest.raises(Unavailable):
            await db.batch(inserts(db, 1, 2))


def on_another_thread(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """What `work` comes to on an event loop of its own."""
    loop = asyncio.get_running_loop()
    outcome = loop.create_future()

    def run() -> None:
        try:
            value, error = asyncio.run(work), None
        except BaseException as raised:
            value, error = None, raised
        settle = outcome.set_result if error is None else outcome.set_exception
        loop.call_soon_threadsafe(settle, error or value)

    threading.Thread(target=run, daemon=True).start()
    return outcome


@asynccontextmanager
async def open_adapter(adapter: Adapter) -> AsyncIterator[Adapter]:
    await adapter.open()
    try:
        yield adapter
    finally:
        await adapter.close()


class Siblings(Case):
    """The same database from another event loop."""

    async def test_a_sibling_is_not_open_yet(self, db: Adapter) -> None:
        sibling = db.sibling()
        with pytest.raises(Unavailable):
            await sibling.fetch(Sql("SELECT 1"))
        await sibling.close()

    async def test_a_sibling_sees_and_changes_the_same_rows(self, db: Adapter) -> None:
        await add(db, 1, "one")
        async with open_adapter(db.sibling()) as sibling:
            assert (sibling.dialect, sibling.label) == (db.dialect, db.label)
            assert await names(sibling) == ["one"]
            await add(sibling, 2, "two")
            async with open_adapter(sibling.sibling()) as its_own:
                await add(its_own, 3, "three")
        assert await names(db) == ["one", "two", "three"]
        async with open_adapter(db.sibling()) as another:  # nothing went away with the first
            assert await names(another) == ["one", "two", "three"]

    async def test_a_sibling_works_on_another_thread_beside_a_busy_adapter(self, db: Adapter) -> None:
        await add(db, 1, "counter")
        step = Sql("UPDATE things SET amount = amount + 1 WHERE id = 1")

        async def count(adapter: Adapter) -> None:
            for _ in range(50):
                await adapter.execute(step)
                async with adapter.transaction() as tx:
                    await tx.execute(step)
                await adapter.batch([step, step])

        async def elsewhere() -> None:
            async with open_adapter(db.sibling()) as sibling:
                await count(sibling)

        others = [on_another_thread(elsewhere()) for _ in range(2)]
        await asyncio.gather(count(db), *others)
        [[amount]] = await db.fetch(Sql("SELECT amount FROM things"))
        assert amount == 3 * 50 * 4

    async def test_a_sibling_goes_on_while_this_event_loop_is_blocked(self, db: Adapter) -> None:
        await add(db, 1, "counter")
        has_written = threading.Event()

        async def elsewhere() -> None:
            async with open_adapter(db.sibling()) as sibling:
                await sibling.execute(Sql("UPDATE things SET amount = 7"))
            has_written.set()

        outcome = on_another_thread(elsewhere())
        assert has_written.wait(PATIENCE)
        await outcome
        [[amount]] = await db.fetch(Sql("SELECT amount FROM things"))
        assert amount == 7

    async def test_the_second_writer_waits_for_a_transaction_of_the_first(self, db: Adapter) -> None:
        await add(db, 1, "counter")
        step = Sql("UPDATE things SET amount = amount + 1 WHERE id = 1")
        async with open_adapter(db.sibling()) as sibling:
            async with db.transaction() as tx:
                await tx.execute(step)
                waiting = asyncio.create_task(sibling.execute(step))
                for _ in range(20):
                    await tx.fetch(Sql("SELECT 1"))
                assert not waiting.done()
            assert await waiting == 1


class Ringing:
    """Counts how often it was woken, and lets a test wait for the next time."""

    def __init__(self) -> None:
        self.times = 0
        self._rang = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._rang.set()

    async def next(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._rang.wait()
        self._rang.clear()


async def announce(db: Executor, channel: str = CHANNEL) -> None:
    """Change something, and say so where the database does not notice by itself."""
    await db.write(sql(db, "INSERT INTO things (id, name) SELECT count(*) + 1, 'more' FROM things"))
    notify = "SELECT pg_notify(left(CAST(? AS text) || '.' || current_schema(), 63), '')"
    text = by_dialect(db.dialect, sqlite=None, postgres=notify)
    if text is not None:
        await db.write(sql(db, text, channel))


class Listening(Case):
    """Being woken when something changed."""

    @pytest.fixture
    async def heard(self, db: Adapter) -> Adapter:
        if not self.hears:
            pytest.skip("it never wakes anybody, as it may")
        return db

    async def test_listening_works_whether_or_not_it_wakes(self, db: Adapter) -> None:
        async with db.listen(CHANNEL, Ringing()), db.listen("others", Ringing()):
            await announce(db)
        assert await names(db) == ["more"]

    async def test_whoever_listens_is_woken_once_at_the_beginning_and_then_by_changes(
        self, heard: Adapter
    ) -> None:
        ringing = Ringing()
        async with heard.listen(CHANNEL, ringing):
            await ringing.next()
            assert ringing.times == 1
            for _ in range(3):
                await announce(heard)
                await ringing.next()

    async def test_a_change_made_elsewhere_wakes(self, heard: Adapter) -> None:
        ringing = Ringing()
        async with open_adapter(heard.sibling()) as sibling, heard.listen(CHANNEL, ringing):
            await ringing.next()
            await announce(sibling)
            await ringing.next()

    async def test_a_change_wakes_when_it_is_committed(self, heard: Adapter) -> None:
        ringing = Ringing()
        async with heard.listen(CHANNEL, ringing):
            await ringing.next()
            async with heard.transaction() as tx:
                await announce(tx)
                await heard.ping()
                assert ringing.times == 1
            await ringing.next()

    async def test_several_listen_and_each_stops_for_itself(self, heard: Adapter) -> None:
        first, second, other = Ringing(), Ringing(), Ringing()
        async with heard.listen(CHANNEL, first), heard.listen("others", other):
            async with heard.listen(CHANNEL, second):
                await asyncio.gather(first.next(), second.next(), other.next())
                await announce(heard)
                await asyncio.gather(first.next(), second.next())
            times = second.times
            await announce(heard)
            await first.next()
            await announce(heard, "others")
            await other.next()
        assert second.times == times

    async def test_who_has_stopped_may_listen_again(self, heard: Adapter) -> None:
        for _ in range(3):
            ringing = Ringing()
            async with heard.listen(CHANNEL, ringing):
                await ringing.next()
                await announce(heard)
                await ringing.next()

    async def test_a_wake_that_fails_does_not_end_the_listening(self, heard: Adapter) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        ringing = Ringing()

        def fail() -> None:
            ringing()
            raise KeyError

        async with heard.listen(CHANNEL, fail):
            await ringing.next()
            await announce(heard)
            await ringing.next()

    async def test_a_body_that_raises_is_not_swallowed(self, db: Adapter) -> None:
        with pytest.raises(KeyError):
            async with db.listen(CHANNEL, Ringing()):
                raise KeyError

    async def test_closing_the_adapter_ends_the_listening(self, db: Adapter) -> None:
        async with asyncio.timeout(PATIENCE), db.listen(CHANNEL, Ringing()):
            await db.close()
        with pytest.raises(RequestError):
            async with db.listen(CHANNEL, Ringing()):
                pytest.fail("it listened")
