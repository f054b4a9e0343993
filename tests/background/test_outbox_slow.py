"""Handlers that take long: what is done is written down meanwhile, and the other keys go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Server
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.errors import DeclarationError
from maniflex.testing.clock import FakeClock
from tests.kit.internals import a_dispatcher
from tests.kit.outbox import Bench, a_bench
from tests.kit.waiting import eventually


class Gate:
    """A handler that returns at once, but for the payloads it holds until they are let go."""

    def __init__(self, *held: Any) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self._open: dict[Any, asyncio.Event] = {payload: asyncio.Event() for payload in held}

    def __call__(self, outbox: Outbox) -> None:
        outbox.handler("note")(self.handle)

    def let_go(self, payload: Any) -> None:
        self._open[payload].set()

    async def handle(self, message: Message) -> None:
        self.begun.append(message.payload)
        if message.payload in self._open:
            await self._open[message.payload].wait()
        self.ended.append(message.payload)


async def statuses(bench: Bench) -> list[tuple[str, int]]:
    return [(row.status, row.attempts) for row in await bench.rows()]


def delivered(bench: Bench, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether at least so many messages are delivered, by what the database knows."""

    async def check() -> bool:
        return len(await bench.rows(status="delivered")) >= count

    return check


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_what_is_delivered_is_written_down_while_the_batch_is_on_its_way(
    database_url: str, concurrency: int
) -> None:
    gate = Gate(3, 5)
    async with a_bench(database_url, gate) as bench:
        await bench.enqueue(*(("note", n, "k") for n in (1, 2, 3, 4)), ("note", 5), ("note", 6))
        relay = asyncio.create_task(bench.drain(concurrency=concurrency))

        await eventually(delivered(bench, 2))
        assert (await statuses(bench))[2] == ("pending", 1)

        gate.let_go(3)
        gate.let_go(5)
        assert await relay == 6
        rows = await bench.rows()
    assert [(row.status, row.attempts, row.lease_until) for row in rows] == [("delivered", 1, None)] * 6
    assert [n for n in gate.ended if n < 5] == [1, 2, 3, 4]


async def test_what_is_delivered_is_written_down_within_a_moment_also_when_no_handler_is_slow(
    database_url: str,
) -> None:
    gate = Gate(3)
    async with a_bench(database_url, gate) as bench:
        await bench.enqueue(*(("note", n) for n in (1, 2, 3, 4)))
        dispatcher = a_dispatcher(bench.outbox, 4, 1)
        object.__setattr__(dispatcher._policy, "slow_after", timedelta(hours=1))
        relay = asyncio.create_task(dispatcher.step())

        await eventually(delivered(bench, 2))
        assert gate.begun == [1, 2, 3]

        gate.let_go(3)
        await relay
        assert await statuses(bench) == [("delivered", 1)] * 4


async def test_a_handler_that_hangs_holds_up_its_own_key_only(database_url: str) -> None:
    gate = Gate("a1")
    async with a_bench(database_url, gate) as bench:
        messages = [("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", None), ("b2", "b"), ("a3", "a")]
        await bench.enqueue(*(("note", payload, key) for payload, key in messages))
        relay = asyncio.create_task(bench.drain())

        await eventually(delivered(bench, 3))  # one relay, and it has taken the whole batch
        assert gate.ended == ["b1", "c1", "b2"]
        await bench.enqueue(("note", "d1", "d"), ("note", "a4", "a"))
        assert await bench.drain() == 1  # another relay

        gate.let_go("a1")
        assert await relay == 7
        assert {row.status for row in await bench.rows()} == {"delivered"}
        assert {row.attempts for row in await bench.rows()} == {1}
    assert [n for n in gate.ended if n.startswith("a")] == ["a1", "a2", "a3", "a4"]


async def test_a_worker_goes_on_with_new_batches_and_comes_back_to_the_key(database_url: str) -> None:
    gate = Gate("a1")
    async with a_bench(database_url, gate, clock=FakeClock()) as bench:
        worker = bench.outbox.worker()
        await worker.start()
        try:
            await bench.enqueue(("note", "a1", "a"), ("note", "a2", "a"))
            await eventually(lambda: gate.begun == ["a1"])
            for n in range(3):
                await bench.enqueue(("note", n, None))
                await eventually(lambda count=n + 1: worker.delivered == count)  # type: ignore[misc]
            gate.let_go("a1")
            await eventually(lambda: worker.delivered == 5)  # without a poll: the clock stands still
        finally:
            await worker.stop()
    assert gate.ended == [0, 1, 2, "a1", "a2"]


async def test_with_no_room_left_for_handlers_that_hang_the_rest_is_for_other_relays(
    database_url: str,
) -> None:
    gate = Gate(0, 1)
    async with a_bench(database_url, gate) as bench:
        await bench.enqueue(*(("note", n) for n in range(6)))
        dispatcher = a_dispatcher(bench.outbox, 6, 1)
        object.__setattr__(dispatcher._policy, "most_aside", 2)

        assert not await dispatcher.step()
        assert gate.begun == [0, 1]
        assert await bench.drain() == 4
        assert not await dispatcher.step()

        gate.let_go(0)
        gate.let_go(1)
        while await dispatcher.wait_for_aside():
            pass
        await dispatcher.finish()
        assert await statuses(bench) == [("delivered", 1)] * 6


async def test_an_async_handler_past_its_timeout_is_stopped_and_has_failed(database_url: str) -> None:
    stopped = asyncio.Event()
    begun: list[str] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note", timeout=0.05)
        async def hang(message: Message) -> None:
            begun.append(message.payload)
            if message.payload == "a1":
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", "a1", "a"), ("note", "a2", "a"), ("note", "b1", "b"))

        assert await bench.drain() == 1

        assert stopped.is_set()
        first, second, other = await bench.rows()
        assert (first.status, first.attempts) == ("pending", 1)
        assert first.last_error == "TimeoutError: the handler took longer than 0.05 s"
        assert (second.status, second.attempts) == ("pending", 0)
        assert other.status == "delivered"
        assert bench.metrics.value("outbox_timeouts_total") == 1
    assert begun == ["a1", "b1"]


async def test_a_handler_that_ends_well_although_it_was_told_to_stop_has_delivered(database_url: str) -> None:
    def declare(outbox: Outbox) -> None:
        @outbox.handler("note", timeout=timedelta(milliseconds=50))
        async def stubborn(message: Message) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1), ("note", 2))

        assert await bench.drain() == 2

        assert await statuses(bench) == [("delivered", 1)] * 2


async def test_a_plain_function_past_its_timeout_is_reported_and_keeps_its_message_until_it_returns(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note", timeout=0.05)
        def plain(message: Message) -> None:
            calls.append(message.payload)
            if message.payload == 1:
                go_on.wait(30)

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1, "a"), ("note", 2, "b"), ("note", 3, "a"))
        relay = asyncio.create_task(bench.drain())

        await eventually(delivered(bench, 1))
        await eventually(lambda: bench.metrics.value("outbox_timeouts_total") > 0)
        assert await bench.drain() == 0
        assert "takes longer than its timeout" in caplog.text

        go_on.set()
        assert await relay == 3
        assert await statuses(bench) == [("delivered", 1)] * 3
    assert calls == [1, 2, 3]


async def test_a_relay_that_is_cancelled_stops_the_handlers_that_take_long(database_url: str) -> None:
    gate = Gate(1, 4)
    async with a_bench(database_url, gate) as bench:
        await bench.enqueue(*(("note", n) for n in (1, 2, 3)))
        relay = asyncio.create_task(bench.drain())
        await eventually(delivered(bench, 2))
        await bench.enqueue(("note", 4), ("note", 5))
        relay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relay

        assert await statuses(bench) == [
            ("pending", 0),
            ("delivered", 1),
            ("delivered", 1),
            ("pending", 0),
            ("pending", 0),
        ]
        assert {row.lease_until for row in await bench.rows()} == {None}


async def test_a_stopping_worker_lets_the_handlers_that_take_long_finish(database_url: str) -> None:
    gate = Gate(1)
    async with a_bench(database_url, gate) as bench:
        worker = bench.outbox.worker()
        await worker.start()
        await bench.enqueue(("note", 1, "k"), ("note", 2))
        await eventually(delivered(bench, 1))
        stopping = asyncio.create_task(worker.stop())
        await eventually(lambda: worker.stopping)
        gate.let_go(1)
        await stopping

        assert await statuses(bench) == [("delivered", 1)] * 2


async def test_outcomes_that_cannot_be_written_in_between_are_written_later(postgres_url: str) -> None:
    gate = Gate(2)
    async with a_bench(postgres_url, gate) as bench:
        await bench.enqueue(("note", 1), ("note", 2))
        relay = asyncio.create_task(bench.drain())
        await eventually(lambda: gate.begun == [1, 2])
        await bench.server.raw_exec("ALTER TABLE outbox_event RENAME TO hidden")
        await eventually(lambda: bench.metrics.value("outbox_settle_errors_total") > 0)
        await bench.server.raw_exec("ALTER TABLE hidden RENAME TO outbox_event")
        await eventually(delivered(bench, 1))
        gate.let_go(2)
        assert await relay == 2
    assert gate.begun == [1, 2]


@pytest.mark.parametrize("timeout", [0, -1, timedelta(0), "soon", None])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    server = Server()
    server.outbox.handler("note", timeout=timeout)(lambda message: None)

    with pytest.raises(DeclarationError, match="timeout"):
        server.seal()
