"""A server that falls silent: nothing waits for it for ever, and no connection to it is used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from maniflex.db.postgres import connection, listener, pool
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.errors import TransactionError, Unavailable
from maniflex.sql.statement import Sql
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually

ONE = Sql("SELECT 1")
INSERT = Sql("INSERT INTO t VALUES (1)")
PATIENCE = 20.0


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed after two seconds instead of half a minute."""
    monkeypatch.setattr(connection, "ANSWER_GRACE", 0.5)
    monkeypatch.setattr(pool, "DRAIN_WITHIN", 0.5)


@pytest.fixture
async def relay(postgres_url: str) -> AsyncIterator[Relay]:
    relay = Relay(postgres_url)
    await relay.listen()
    yield relay
    relay.speak()
    await relay.cut()


@pytest.fixture
async def adapter(relay: Relay) -> AsyncIterator[PostgresAdapter]:
    adapter = PostgresAdapter(
        relay.url,
        pool_size=2,
        statement_timeout=timedelta(seconds=0.5),
        connect_timeout=timedelta(seconds=1),
        pool_timeout=timedelta(seconds=3),
    )
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE t (v int)"))
    yield adapter
    await adapter.close()


async def known_statement(adapter: PostgresAdapter, relay: Relay) -> None:
    await adapter.fetch(ONE)
    relay.hush()
    await adapter.fetch(ONE)


async def new_statement(adapter: PostgresAdapter, relay: Relay) -> None:
    relay.hush()
    await adapter.fetch(Sql("SELECT 2"))


async def write(adapter: PostgresAdapter, relay: Relay) -> None:
    await adapter.execute(INSERT)
    relay.hush()
    await adapter.execute(INSERT)


async def batch(adapter: PostgresAdapter, relay: Relay) -> None:
    relay.hush()
    await adapter.batch([INSERT, INSERT])


async def begin(adapter: PostgresAdapter, relay: Relay) -> None:
    relay.hush()
    async with adapter.transaction():
        pass


async def statement_in_a_transaction(adapter: PostgresAdapter, relay: Relay) -> None:
    async with adapter.transaction() as tx:
        await tx.execute(INSERT)
        relay.hush()
        await tx.execute(INSERT)


async def after_an_error(adapter: PostgresAdapter, relay: Relay) -> None:
    async with adapter.transaction() as tx:
        await tx.execute(INSERT)
        relay.hush()
        raise Unavailable("of the application's own")  # and the ROLLBACK gets no answer


async def stream(adapter: PostgresAdapter, relay: Relay) -> None:
    rows = adapter.stream(Sql("SELECT generate_series(1, 1000)"), batch=10)
    await anext(rows)
    relay.hush()
    async for _ in rows:
        pass


WAYS = (
    known_statement,
    new_statement,
    write,
    batch,
    begin,
    statement_in_a_transaction,
    after_an_error,
    stream,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_whatever_waits_for_a_silent_server_is_told_that_the_connection_is_lost(
    adapter: PostgresAdapter,
    relay: Relay,
    way: Callable[[PostgresAdapter, Relay], Awaitable[None]],
) -> None:
    if way is stream:
        for pool in adapter._pools:
            pool._deadlines.stream = 1.0
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable):
            await way(adapter, relay)
    relay.speak()
    async with asyncio.timeout(PATIENCE):
        assert await adapter.fetch(ONE) == [(1,)]
        await adapter.ping()


async def test_a_commit_without_an_answer_is_not_confirmed_and_its_connection_is_not_used_again(
    adapter: PostgresAdapter, relay: Relay
) -> None:
    async def commit_into_silence() -> None:
        async with adapter.transaction() as tx:
            await tx.execute(INSERT)
            relay.hush()

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TransactionError) as lost:
            await commit_into_silence()
    assert (lost.value.code, lost.value.retryable) == ("TX_COMMIT_ERROR", False)
    assert not any(slot.overdue for slot in adapter._writes.slots)
    relay.speak()
    async with asyncio.timeout(PATIENCE):
        [[rows]] = await adapter.fetch(Sql("SELECT count(*) FROM t"))
        assert rows in (0, 1)


async def test_a_write_into_silence_is_not_sent_again(adapter: PostgresAdapter, relay: Relay) -> None:
    await adapter.execute(INSERT)
    relay.hush()
    before = relay.connections
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable) as lost:
            await adapter.execute(INSERT)
    assert not lost.value.retryable
    assert relay.connections == before


async def test_a_cancelled_statement_on_a_silent_connection_frees_its_place(
    adapter: PostgresAdapter, relay: Relay
) -> None:
    await adapter.fetch(ONE)
    relay.hush()
    reading = asyncio.create_task(adapter.fetch(ONE))
    await asyncio.wait([reading], timeout=0.1)
    reading.cancel()
    await asyncio.wait([reading])
    async with asyncio.timeout(PATIENCE):
        while adapter._writes.slots:
            await asyncio.wait(adapter._writes._tasks, return_when=asyncio.FIRST_COMPLETED)
        relay.speak()
        assert await adapter.fetch(ONE) == [(1,)]


async def test_a_statement_that_may_take_long_is_let_finish(adapter: PostgresAdapter) -> None:
    slow = Sql("SELECT 1 FROM pg_sleep(2.2)")
    for allow in ("SET LOCAL statement_timeout = 0", "SELECT set_config('statement_timeout', '0', true)"):
        async with adapter.transaction() as tx:
            await tx.fetch(Sql(allow))
            assert await tx.fetch(slow) == [(1,)]
    assert {slot._within for slot in adapter._writes.slots} == {1.0}


async def test_a_listener_notices_that_its_server_fell_silent(
    adapter: PostgresAdapter, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = asyncio.Event()
    monkeypatch.setattr(
        listener.Listener.__init__, "__kwdefaults__", {"ask_every": 0.2, "answer_within": 0.5}
    )
    async with adapter.listen("news", heard.set):
        heard.clear()
        relay.accepted.clear()
        relay.hush()
        async with asyncio.timeout(PATIENCE):
            await relay.accepted.wait()  # it lets go of the silent one and asks for another
            relay.speak()
            await heard.wait()  # whatever was missed meanwhile


async def test_a_process_that_stood_still_reads_its_answers_before_it_blames_the_server(
    adapter: PostgresAdapter,
) -> None:
    pool = adapter._writes
    now = pool._clock()
    pool._clock = lambda: now
    slow = asyncio.create_task(adapter.fetch(Sql("SELECT 1 FROM pg_sleep(0.2)")))
    await eventually(lambda: any(slot.due for slot in pool.slots), "the statement under way")
    now += 3600
    pool.sweep()
    assert await slow == [(1,)]
