"""The pool of PostgreSQL connections: who gets one, which are kept, and what a dead one costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from itertools import count
from uuid import uuid4

import asyncpg
import pytest

from maniflex.db.postgres import pool as pool_module
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.postgres.connection import PooledConnection
from maniflex.db.postgres.hosts import ServerConnection
from maniflex.db.postgres.pool import Pool
from maniflex.errors import Unavailable
from maniflex.sql.statement import Sql
from tests.kit.postgres import as_role
from tests.kit.statements import eventually_answers
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import PATIENCE

ONE = Sql("SELECT 1")
SLEEP = Sql("SELECT 1 FROM pg_sleep(3600)")
NOBODY_SLEEPS = Sql(
    "SELECT count(*) = 0 FROM pg_stat_activity"
    " WHERE datname = current_database() AND state = 'active' AND query = $1",
    (SLEEP.text,),
)
SOMEBODY_SLEEPS = Sql(NOBODY_SLEEPS.text.replace("= 0", "= 1"), NOBODY_SLEEPS.params)
KILL_THE_OTHERS = Sql(
    "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class Clock:
    """Monotonic seconds that move when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def watcher(postgres_url: str) -> AsyncIterator[PostgresAdapter]:
    adapter = PostgresAdapter(postgres_url, pool_size=2, application_name="watcher")
    await adapter.open()
    yield adapter
    await adapter.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def pool(postgres_url: str, clock: Clock) -> AsyncIterator[Pool]:
    """Room for two; ten seconds of patience; at most a minute idle and ten minutes old."""

    async def connect() -> ServerConnection:
        return await asyncpg.connect(postgres_url, connection_class=ServerConnection)

    pool = Pool(connect, size=2, patience=10, max_lifetime=600, max_idle=60, clock=clock)
    pool.open()
    yield pool
    for slot in list(pool.slots):
        pool.discard(slot)
    await pool.close()


class Turn:
    """Awaited, it lets every other task go on once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await Turn()


async def soon(task: asyncio.Task[PooledConnection]) -> PooledConnection:
    return await asyncio.wait_for(task, PATIENCE)


async def waiting(pool: Pool) -> asyncio.Task[PooledConnection]:
    task = asyncio.create_task(pool.acquire())
    await turns()
    assert not task.done()
    return task


@asynccontextmanager
async def slow_to_open(url: str, clock: Clock) -> AsyncIterator[tuple[Pool, asyncio.Event]]:
    """A pool with room for two, whose second connection is not made before the event is set."""
    may_connect, attempts = asyncio.Event(), count(1)

    async def connect() -> ServerConnection:
        if next(attempts) > 1:
            await may_connect.wait()
        return await asyncpg.connect(url, connection_class=ServerConnection)

    pool = Pool(connect, size=2, patience=10, max_lifetime=600, max_idle=60, clock=clock)
    pool.open()
    yield pool, may_connect
    may_connect.set()
    for slot in list(pool.slots):
        pool.discard(slot)
    await pool.close()


class TestLending:
    async def test_connections_are_opened_when_needed_and_the_last_one_back_goes_first(
        self, pool: Pool
    ) -> None:
        first = await pool.acquire()
        assert len(pool.slots) == 1
        second = await pool.acquire()
        pool.release(second)
        pool.release(first)
        assert await pool.acquire() is first

    async def test_those_who_wait_are_served_in_order(self, pool: Pool) -> None:
        first, second = await pool.acquire(), await pool.acquire()
        early, late = await waiting(pool), await waiting(pool)
        pool.release(second)
        assert await soon(early) is second
        pool.release(first)
        assert await soon(late) is first

    async def test_waiting_too_long_is_unavailable_and_costs_nobody_a_connection(
        self, pool: Pool, clock: Clock
    ) -> None:
        slots = [await pool.acquire(), await pool.acquire()]
        impatient = await waiting(pool)
        clock.now += 11
        patient = await waiting(pool)
        pool.sweep()
        with pytest.raises(Unavailable):
            await impatient
        pool.release(slots[0])
        assert await soon(patient) is slots[0]

    async def test_a_connection_handed_to_somebody_cancelled_goes_to_the_next(self, pool: Pool) -> None:
        first, second = await pool.acquire(), await pool.acquire()
        cancelled, patient = await waiting(pool), await waiting(pool)
        pool.release(first)
        cancelled.cancel()  # in the same turn of the loop: it was served and does not know yet
        assert await soon(patient) is first
        assert cancelled.cancelled()
        alone = await waiting(pool)
        pool.release(second)
        alone.cancel()
        await asyncio.wait([alone])
        assert pool.free == [second]

    async def test_the_right_to_open_handed_to_somebody_cancelled_goes_to_the_next(self, pool: Pool) -> None:
        first, _ = await pool.acquire(), await pool.acquire()
        cancelled, patient = await waiting(pool), await waiting(pool)
        pool.discard(first)
        cancelled.cancel()
        assert not (await soon(patient)).con.is_closed()
        assert len(pool.slots) == 2

    async def test_a_failed_connection_leaves_room_for_another(self, postgres_url: str, clock: Clock) -> None:
        outcomes: list[Exception | None] = [OSError("refused"), None]

        async def connect() -> ServerConnection:
            if (error := outcomes.pop(0)) is not None:
                raise error
            return await asyncpg.connect(postgres_url, connection_class=ServerConnection)

        pool = Pool(connect, size=1, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        with pytest.raises(OSError, match="refused"):
            await pool.acquire()
        pool.release(await pool.acquire())
        await pool.close()

    async def test_when_the_server_has_no_more_connections_one_waits_for_those_that_work(
        self, postgres_url: str, clock: Clock
    ) -> None:
        room, attempts = 1, 0

        async def connect() -> ServerConnection:
            nonlocal attempts
            attempts += 1
            if len(small.slots) >= room:
                raise Unavailable("too many connections")
            return await asyncpg.connect(postgres_url, connection_class=ServerConnection)

        small = Pool(connect, size=3, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        small.open()
        only = await small.acquire()
        first, second = await waiting(small), await waiting(small)
        assert attempts == 2  # the second who waits does not ask the server again at once
        small.release(only)
        assert await soon(first) is only
        clock.now += 1
        small.sweep()
        await turns()
        assert (attempts, second.done()) == (3, False)
        room = 3
        clock.now += 1
        third = await waiting(small)
        small.sweep()
        opened = {await soon(second), await soon(third)}
        assert len(opened | {only}) == 3
        impatient = await waiting(small)
        for _ in range(11):
            clock.now += 1
            small.sweep()
        with pytest.raises(Unavailable):
            await impatient
        for slot in (only, *opened):
            small.release(slot)
        await small.close()

    async def test_without_a_working_connection_a_refused_one_is_told_at_once(
        self, postgres_url: str, clock: Clock
    ) -> None:
        refusing = False

        async def connect() -> ServerConnection:
            if refusing:
                raise Unavailable("too many connections")
            return await asyncpg.connect(postgres_url, connection_class=ServerConnection)

        pool = Pool(connect, size=3, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        only = await pool.acquire()
        refusing = True
        late = await waiting(pool)
        pool.discard(only)  # nobody is left to wait for
        with pytest.raises(Unavailable):
            await soon(late)
        with pytest.raises(Unavailable):
            await pool.acquire()
        refusing = False
        pool.release(await pool.acquire())
        await pool.close()

    async def test_closing_refuses_those_who_wait_and_those_who_come(self, pool: Pool) -> None:
        slots = [await pool.acquire(), await pool.acquire()]
        late = await waiting(pool)
        closing = asyncio.create_task(pool.close())
        await turns()
        for slot in slots:
            pool.release(slot)
        await closing
        with pytest.raises(Unavailable):
            await late
        with pytest.raises(Unavailable):
            await pool.acquire()
        assert all(slot.con.is_closed() for slot in slots)


class TestOpening:
    """Who needs a new connection stands in the line like all others."""

    async def test_a_connection_that_comes_back_goes_to_who_waits_for_a_new_one(
        self, postgres_url: str, clock: Clock
    ) -> None:
        async with slow_to_open(postgres_url, clock) as (pool, may_connect):
            first = await pool.acquire()
            early = await waiting(pool)
            late = await waiting(pool)
            pool.release(first)
            assert await soon(early) is first
            may_connect.set()
            assert await soon(late) is not first

    async def test_nobody_waits_longer_for_a_new_connection_than_for_a_free_one(
        self, postgres_url: str, clock: Clock
    ) -> None:
        async with slow_to_open(postgres_url, clock) as (pool, may_connect):
            first = await pool.acquire()
            impatient = await waiting(pool)
            clock.now += 11
            pool.sweep()
            with pytest.raises(Unavailable):
                await soon(impatient)
            may_connect.set()
            patient = await waiting(pool)
            assert await soon(patient) is not first

    async def test_a_connection_whose_caller_gave_up_serves_the_next(
        self, postgres_url: str, clock: Clock
    ) -> None:
        async with slow_to_open(postgres_url, clock) as (pool, may_connect):
            await pool.acquire()
            cancelled = await waiting(pool)
            cancelled.cancel()
            patient = await waiting(pool)
            may_connect.set()
            await soon(patient)
            assert len(pool.slots) == 2

    async def test_who_waits_for_a_server_that_takes_no_connection_is_told_so(self, clock: Clock) -> None:
        async def connect() -> ServerConnection:
            await asyncio.Event().wait()
            raise AssertionError

        pool = Pool(connect, size=2, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        caller = await waiting(pool)
        clock.now += 11
        pool.sweep()
        with pytest.raises(Unavailable, match="the database took no connection in time"):
            await soon(caller)
        await pool.close()

    async def test_a_pool_that_was_closed_while_it_opened_a_connection_opens_again(
        self, postgres_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pool_module, "CLOSE_WITHIN", 0.1)
        attempts = count(1)

        async def connect() -> ServerConnection:
            if next(attempts) == 1:
                await asyncio.Event().wait()
            return await asyncpg.connect(postgres_url, connection_class=ServerConnection)

        pool = Pool(connect, size=1, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        early = await waiting(pool)
        await pool.close()
        pool.open()
        async with asyncio.timeout(PATIENCE):
            pool.release(await pool.acquire())
        with pytest.raises(Unavailable, match="the database was closed"):
            await soon(early)
        await pool.close()

    async def test_who_has_a_connection_on_its_way_is_not_told_of_one_that_failed(
        self, postgres_url: str, clock: Clock
    ) -> None:
        may_fail, may_connect, attempts = asyncio.Event(), asyncio.Event(), count(1)

        async def connect() -> ServerConnection:
            if next(attempts) == 1:
                await may_fail.wait()
                raise Unavailable("the database cannot be reached")
            await may_connect.wait()
            return await asyncpg.connect(postgres_url, connection_class=ServerConnection)

        pool = Pool(connect, size=2, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        cancelled = await waiting(pool)
        cancelled.cancel()
        patient = await waiting(pool)
        may_fail.set()
        await turns()
        may_connect.set()
        pool.release(await soon(patient))
        assert next(attempts) == 3
        await pool.close()

    async def test_a_connection_that_is_lost_before_it_is_lent_leaves_its_place(
        self, postgres_url: str, clock: Clock
    ) -> None:
        attempts = count(1)

        async def connect() -> ServerConnection:
            con: ServerConnection = await asyncpg.connect(postgres_url, connection_class=ServerConnection)
            if next(attempts) == 1:
                con._transport.abort()  # type: ignore[attr-defined]  # as when the server ends it
                await turns()
            return con

        pool = Pool(connect, size=1, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        with pytest.raises(Unavailable):
            await soon(asyncio.create_task(pool.acquire()))
        pool.release(await soon(asyncio.create_task(pool.acquire())))
        await pool.close()

    async def test_of_those_in_line_for_a_server_that_is_away_each_is_told(self, clock: Clock) -> None:
        async def connect() -> ServerConnection:
            raise Unavailable("the database cannot be reached")

        pool = Pool(connect, size=2, patience=10, max_lifetime=600, max_idle=60, clock=clock)
        pool.open()
        callers = [asyncio.create_task(pool.acquire()) for _ in range(7)]
        done, _ = await asyncio.wait(callers, timeout=PATIENCE)
        assert [str(task.exception()) for task in done] == ["the database cannot be reached"] * 7
        await pool.close()


class TestAge:
    async def test_a_connection_long_unused_is_closed(self, pool: Pool, clock: Clock) -> None:
        first, second = await pool.acquire(), await pool.acquire()
        pool.release(first)
        clock.now += 50
        pool.release(second)
        clock.now += 20
        pool.sweep()
        assert pool.free == [second]
        assert first.con.is_closed()

    async def test_an_old_connection_is_closed_when_it_comes_back(self, pool: Pool, clock: Clock) -> None:
        slot = await pool.acquire()
        clock.now += 601
        pool.sweep()
        assert not slot.con.is_closed()
        pool.release(slot)
        assert slot.con.is_closed()
        assert pool.free == []

    async def test_one_who_waits_gets_a_new_connection_for_an_old_one(self, pool: Pool, clock: Clock) -> None:
        old, _ = await pool.acquire(), await pool.acquire()
        clock.now += 601
        next_in_line = await waiting(pool)
        old.retired = True
        pool.release(old)
        assert (await soon(next_in_line)).con is not old.con


@pytest.fixture
async def adapter(postgres_url: str) -> AsyncIterator[PostgresAdapter]:
    adapter = PostgresAdapter(postgres_url, pool_size=2)
    await adapter.open()
    yield adapter
    await adapter.close()


async def work(adapter: PostgresAdapter, sql: Sql = ONE) -> None:
    """Keep both connections of `adapter` busy once."""
    async with adapter.transaction() as tx:
        await tx.fetch(sql)
        await adapter.fetch(sql)


class TestCrowds:
    async def test_quick_statements_share_all_connections_while_the_line_moves(
        self, postgres_url: str
    ) -> None:
        adapter = PostgresAdapter(postgres_url, pool_size=4)
        await adapter.open()
        who = Sql("SELECT pg_backend_pid()")
        for _ in range(3):
            await adapter.fetch(who)
        answers = await asyncio.gather(*(adapter.fetch(who) for _ in range(400)))
        served = Counter(rows[0][0] for rows in answers)
        await adapter.close()
        assert len(served) >= 4
        assert max(served.values()) < 360  # not all but a few on one, however late the others begin


class TestDeadConnections:
    @pytest.mark.parametrize("method", ["fetch", "fetch_one", "fetch_named", "write", "execute"])
    async def test_connections_the_server_closed_are_replaced_unnoticed(
        self, adapter: PostgresAdapter, watcher: PostgresAdapter, method: str
    ) -> None:
        await work(adapter)
        await watcher.fetch(KILL_THE_OTHERS)
        run: Callable[[Sql], Awaitable[object]] = getattr(adapter, method)
        for _ in range(3):
            await run(ONE)
        await work(adapter)

    async def test_while_the_server_is_away_it_is_unavailable_and_afterwards_all_is_well(
        self, postgres_url: str
    ) -> None:
        relay = Relay(postgres_url)
        await relay.listen()
        adapter = PostgresAdapter(relay.url, pool_size=2)
        await adapter.open()
        await work(adapter)
        await relay.cut()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await adapter.fetch(ONE)
            with pytest.raises(Unavailable):
                await adapter.ping()
            with pytest.raises(Unavailable):
                async with adapter.transaction():
                    pass
        await relay.listen()
        await work(adapter)
        await adapter.close()
        await relay.cut()

    async def test_a_write_that_may_have_run_is_not_sent_again(
        self, postgres_url: str, watcher: PostgresAdapter
    ) -> None:
        await watcher.execute(Sql("CREATE TABLE t (v int)"))
        relay = Relay(postgres_url)
        await relay.listen()
        adapter = PostgresAdapter(relay.url, pool_size=2)
        await adapter.open()
        insert = Sql("INSERT INTO t SELECT 1 FROM pg_sleep(3600)")
        writing = asyncio.create_task(adapter.execute(insert))
        # Not just active: while the statement is only being parsed, it has not run for sure.
        running = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query = $1"
        await eventually_answers(watcher, Sql(running, (insert.text,)))
        before = relay.connections
        await relay.cut()
        with pytest.raises(Unavailable) as cut:
            await writing
        assert (cut.value.retryable, relay.connections) == (False, before)
        await adapter.close()

    async def test_a_lost_connection_inside_a_transaction_is_unavailable(
        self, adapter: PostgresAdapter, watcher: PostgresAdapter
    ) -> None:
        async def lose_it() -> None:
            async with adapter.transaction() as tx:
                await tx.fetch(ONE)
                await watcher.fetch(KILL_THE_OTHERS)
                await tx.fetch(ONE)

        with pytest.raises(Unavailable):
            await lose_it()
        await work(adapter)


@pytest.fixture
async def limited_url(postgres_url: str, watcher: PostgresAdapter) -> AsyncIterator[str]:
    """The database for a role that may have two connections."""
    role = f"limited_{uuid4().hex[:12]}"
    await watcher.execute(Sql(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 2 PASSWORD 'secret'"))
    yield as_role(postgres_url, f"{role}:secret")
    await watcher.execute(Sql(f"DROP ROLE {role}"))


async def test_a_pool_larger_than_the_server_allows_serves_everybody(limited_url: str) -> None:
    adapter = PostgresAdapter(limited_url, pool_size=10)
    await adapter.open()
    nap = Sql("SELECT 1 FROM pg_sleep(0.01)")
    assert await asyncio.gather(*(adapter.fetch(nap) for _ in range(40))) == [[(1,)]] * 40
    await adapter.close()


class TestExpress:
    async def test_quick_reads_do_not_wait_for_slow_ones(self, postgres_url: str) -> None:
        adapter = PostgresAdapter(postgres_url, pool_size=4)
        await adapter.open()
        await adapter.fetch(ONE)
        slow = [asyncio.create_task(adapter.fetch(SLEEP)) for _ in range(40)]
        async with asyncio.timeout(10):
            for _ in range(100):
                assert await adapter.fetch(ONE) == [(1,)]
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(adapter.fetch(ONE) for _ in range(50))) == [[(1,)]] * 50
        await adapter.close()

    async def test_a_text_that_turns_out_slow_leaves_the_express(self, postgres_url: str) -> None:
        adapter = PostgresAdapter(postgres_url, pool_size=4)
        await adapter.open()
        nap = "SELECT 1 FROM pg_sleep($1)"
        await adapter.fetch(Sql(nap, (0,)))
        assert nap in adapter._quick.texts
        async with asyncio.timeout(20):
            await asyncio.gather(*(adapter.fetch(Sql(nap, (0.2,))) for _ in range(12)))
        assert nap not in adapter._quick.texts
        await adapter.close()

    async def test_a_small_pool_has_no_connection_beyond_it(self, postgres_url: str) -> None:
        assert PostgresAdapter(postgres_url, pool_size=3)._express is None


class TestCancellation:
    async def test_a_cancelled_read_is_cancelled_on_the_server_and_its_connection_comes_back(
        self, adapter: PostgresAdapter, watcher: PostgresAdapter
    ) -> None:
        for _ in range(5):
            reading = asyncio.create_task(adapter.fetch(SLEEP))
            await eventually_answers(watcher, SOMEBODY_SLEEPS)
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
            await eventually_answers(watcher, NOBODY_SLEEPS)
        await work(adapter)
        ours = "SELECT count(*) <= 2 FROM pg_stat_activity WHERE application_name = 'maniflex'"
        await eventually_answers(watcher, Sql(f"{ours} AND datname = current_database()"))

    async def test_a_cancelled_transaction_is_rolled_back_and_its_locks_are_released(
        self, adapter: PostgresAdapter, watcher: PostgresAdapter
    ) -> None:
        await watcher.execute(Sql("CREATE TABLE t (v int)"))

        async def write_and_sleep() -> None:
            async with adapter.transaction() as tx:
                await tx.execute(Sql("INSERT INTO t VALUES (1)"))
                await tx.fetch(SLEEP)

        writing = asyncio.create_task(write_and_sleep())
        await eventually_answers(watcher, SOMEBODY_SLEEPS)
        writing.cancel()
        await asyncio.wait([writing])
        await watcher.execute(Sql("ALTER TABLE t ADD COLUMN w int"))
        assert (await watcher.fetch(Sql("SELECT count(*) FROM t")))[0][0] == 0
        await work(adapter)

    async def test_cancelling_at_any_turn_of_the_loop_loses_nothing(self, adapter: PostgresAdapter) -> None:
        async def one(number: int) -> None:
            # A new text each time, so that preparing is interrupted too.
            await adapter.fetch(Sql(f"SELECT {number}"))

        for turn in range(120):
            tasks = [asyncio.create_task(one(turn * 10 + number)) for number in range(4)]
            await turns(turn % 12)
            for task in tasks[turn % 2 :: 2]:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() or task.exception() is None for task in tasks)
        async with asyncio.timeout(10):
            await work(adapter)
