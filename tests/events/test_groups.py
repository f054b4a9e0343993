"""Durable subscriptions: every group gets every event, in order, and again after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import Fatal, Model, Server, field
from maniflex.background.outbox.model import OutboxMessage
from maniflex.errors import CursorGone
from maniflex.events import Event
from maniflex.testing.clock import FakeClock

SECOND, MOMENT = timedelta(seconds=1), timedelta(milliseconds=1)


class Note(Model):
    """What handlers write."""

    text: str = field(filterable=True)


def a_failure() -> BaseException:
    return RuntimeError("boom")


class Seen:
    """A handler that remembers, and raises as often as it is told to."""

    def __init__(
        self, failures: int = 0, error: Callable[[], BaseException] = lambda: RuntimeError("boom")
    ) -> None:
        self.events: list[Event] = []
        self.failures = failures
        self.error = error

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.failures:
            self.failures -= 1
            raise self.error()

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


@asynccontextmanager
async def serving(
    url: str, declare: Callable[[Server], object], clock: FakeClock | None = None, **settings: Any
) -> AsyncIterator[Server]:
    server = Server(url, clock=clock, background=False, **settings)
    server.register(Note)
    server.events.enable()
    declare(server)
    async with server.lifespan():
        yield server


async def publish(server: Server, *types: str, **values: Any) -> list[Event]:
    return [await server.events.publish(type, outside_transaction=True, **values) for type in types]


async def deliveries(server: Server) -> list[OutboxMessage]:
    return await server.db(OutboxMessage).list(sorts=["seq"], limit=100)


async def test_every_group_gets_every_event_that_it_asks_for(database_url: str) -> None:
    all_of_them, orders = Seen(), Seen()

    def declare(server: Server) -> None:
        server.events.subscribe("*", group="all")(all_of_them)
        server.events.subscribe("order.*", "bill.paid", group="orders")(orders)

    async with serving(database_url, declare) as server:
        await publish(server, "order.placed", "bill.sent", "bill.paid", "order.line.added")

        assert await server.events.drain() == 7

    assert all_of_them.types == ["order.placed", "bill.sent", "bill.paid", "order.line.added"]
    assert orders.types == ["order.placed", "bill.paid", "order.line.added"]
    assert [event.position for event in all_of_them.events] == [1, 2, 3, 4]


async def test_a_handler_that_fails_is_called_again_after_its_pauses(database_url: str) -> None:
    clock, seen = FakeClock(), Seen(failures=2)
    async with serving(database_url, lambda s: s.events.subscribe("a", group="g")(seen), clock) as server:
        [event] = await publish(server, "a")
        await server.events.drain()
        counts = [len(seen.events)]
        for pause in (SECOND, 2 * SECOND):
            for step in (pause - MOMENT, MOMENT):
                clock.advance(step)
                await server.events.drain()
                counts.append(len(seen.events))

        assert counts == [1, 1, 2, 2, 3]
        assert {one.id for one in seen.events} == {event.id}
        assert [row.status for row in await deliveries(server)] == ["delivered"]


async def test_what_always_fails_becomes_a_dead_letter(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, seen, graveyard = FakeClock(), Seen(failures=99), Seen(failures=99)

    def declare(server: Server) -> None:
        server.events.subscribe("a", group="g", dead_letter="mine.dead")(seen)
        server.events.subscribe("mine.dead", group="dead", max_retry=0, dead_letter="mine.dead")(graveyard)

    async with serving(database_url, declare, clock) as server:
        with caplog.at_level(logging.WARNING):
            [event] = await publish(server, "a", subject="thing/1", data={"n": 1})
            for _ in range(5):
                await server.events.drain()
                clock.advance(5 * SECOND)

        assert len(seen.events) == 4
        [letter] = graveyard.events
        assert letter.id != event.id
        assert letter.data == {"n": 1}
        assert letter.headers["originalid"] == event.id
        assert letter.headers["originaltype"] == "a"
        assert "boom" in letter.headers["deadletterreason"]
        assert [row.status for row in await deliveries(server)] == ["delivered", "dead"]
    levels = [record.levelname for record in caplog.records if "group g " in record.message]
    assert levels == ["WARNING"] * 3 + ["ERROR"]
    [last] = [
        record for record in caplog.records if record.levelname == "ERROR" and "group g " in record.message
    ]
    assert last.exc_info is not None


async def test_a_failing_event_holds_up_its_own_key_alone(database_url: str) -> None:
    clock, seen = FakeClock(), Seen(failures=1)
    async with serving(database_url, lambda s: s.events.subscribe("*", group="g")(seen), clock) as server:
        await publish(server, "a.1", key="a")
        await publish(server, "a.2", key="a")
        await publish(server, "b.1", key="b")
        await server.events.drain()
        assert seen.types == ["a.1", "b.1"]

        clock.advance(SECOND)
        await server.events.drain()

        assert seen.types == ["a.1", "b.1", "a.1", "a.2"]


async def test_without_an_order_nothing_waits(database_url: str) -> None:
    clock, seen = FakeClock(), Seen(failures=1)

    def declare(server: Server) -> None:
        server.events.subscribe("*", group="g", ordered=False)(seen)

    async with serving(database_url, declare, clock) as server:
        await publish(server, "a.1", "a.2", key="a")
        await server.events.drain()

        assert seen.types == ["a.1", "a.2"]


@pytest.mark.parametrize("error", [lambda: SystemExit(3), KeyboardInterrupt, lambda: BaseException("odd")])
async def test_any_exception_is_a_failed_attempt(sqlite_url: str, error: Callable[[], BaseException]) -> None:
    clock, seen, others = FakeClock(), Seen(1, error), Seen()

    def declare(server: Server) -> None:
        server.events.subscribe("a", group="g")(seen)
        server.events.subscribe("a", group="others")(others)

    async with serving(sqlite_url, declare, clock) as server:
        await publish(server, "a")
        await server.events.drain()
        clock.advance(SECOND)
        await server.events.drain()

        assert (len(seen.events), len(others.events)) == (2, 1)


async def test_a_fatal_failure_is_the_last_attempt(sqlite_url: str) -> None:
    seen = Seen(1, lambda: Fatal("never"))
    async with serving(sqlite_url, lambda s: s.events.subscribe("a", group="g")(seen)) as server:
        await publish(server, "a")
        await server.events.drain()

        [row] = await deliveries(server)
        assert (row.status, len(seen.events)) == ("dead", 1)


async def test_once_what_a_handler_writes_is_there_once(database_url: str) -> None:
    clock, calls = FakeClock(), []

    def declare(server: Server) -> None:
        async def write(event: Event) -> None:
            calls.append(event.id)
            await server.db(Note).create(text=event.type)
            if len(calls) < 3:
                raise RuntimeError("after the write")

        server.events.subscribe("a", group="g", once=True)(write)

    async with serving(database_url, declare, clock) as server:
        await publish(server, "a")
        for _ in range(3):
            await server.events.drain()
            clock.advance(5 * SECOND)
        assert (len(calls), await server.db(Note).count()) == (3, 1)

        epoch = (await server.events.position()).partition(":")[0]
        assert await server.events.replay("g", after=f"{epoch}:0") == 1
        await server.events.drain()

        assert (len(calls), await server.db(Note).count()) == (3, 1)


async def test_a_replay_gives_the_same_ids_again(database_url: str) -> None:
    seen = Seen()
    async with serving(database_url, lambda s: s.events.subscribe("*", group="g")(seen)) as server:
        await publish(server, "a", "b")
        await server.events.drain()
        middle = await server.events.position()
        await publish(server, "c")
        await server.events.drain()

        assert await server.events.replay("g", after=middle) == 1
        await server.events.drain()

        assert seen.types == ["a", "b", "c", "c"]
        assert seen.events[2].id == seen.events[3].id
        with pytest.raises(CursorGone):
            await server.events.replay("g", after="0000000000000000:1")


async def test_a_new_group_begins_now_or_at_the_beginning(database_url: str) -> None:
    async with serving(database_url, lambda server: None) as server:
        await publish(server, "a", "b")
    old, new = Seen(), Seen()

    def declare(server: Server) -> None:
        server.events.subscribe("*", group="old", start="beginning")(old)
        server.events.subscribe("*", group="new")(new)

    async with serving(database_url, declare) as server:
        await publish(server, "c")
        await server.events.drain()

    assert (old.types, new.types) == (["a", "b", "c"], ["c"])


async def test_a_group_that_catches_up_misses_nothing_that_comes_meanwhile(database_url: str) -> None:
    async with serving(database_url, lambda server: None) as server:
        await publish(server, *(f"old.{n}" for n in range(5)))
        await server.events.drain()
    seen = Seen()

    def declare(server: Server) -> None:
        server.events.subscribe("*", group="g", start="beginning", ordered=False)(seen)

    server = Server(database_url, background=False)
    server.register(Note)
    server.events.enable()
    declare(server)
    async with server.lifespan():
        store = server.events.store
        for n in range(4):
            await publish(server, f"new.{n}")
            await store.route(datetime.now(UTC), limit=2)
        await server.events.drain()

    assert sorted(seen.types) == [*(f"new.{n}" for n in range(4)), *(f"old.{n}" for n in range(5))]


async def test_a_group_whose_code_is_gone_keeps_its_events(database_url: str) -> None:
    first, later = Seen(), Seen()
    async with serving(database_url, lambda s: s.events.subscribe("*", group="g")(first)) as server:
        await publish(server, "a")
        await server.events.drain()
    async with serving(database_url, lambda server: None) as server:
        await publish(server, "b")
        assert await server.events.drain() == 0
    async with serving(database_url, lambda s: s.events.subscribe("*", group="g")(later)) as server:
        await server.events.drain()
        assert later.types == ["b"]

        assert await server.events.forget("g")
        assert not await server.events.forget("g")


async def test_a_paused_group_waits_for_its_events(database_url: str) -> None:
    seen = Seen()
    async with serving(database_url, lambda s: s.events.subscribe("*", group="g")(seen)) as server:
        assert await server.events.pause("g")
        await publish(server, "a")
        assert await server.events.drain() == 0

        await server.events.resume("g")
        assert await server.events.drain() == 1
        assert not await server.events.pause("nobody")


class Payload(BaseModel):
    """What a handler takes."""

    n: int


async def test_data_that_do_not_fit_are_dead_at_once(database_url: str) -> None:
    seen: list[Payload] = []

    def declare(server: Server) -> None:
        def take(event: Event) -> None:
            seen.append(event.data)

        server.events.subscribe("a", group="g", payload=Payload)(take)

    async with serving(database_url, declare) as server:
        await publish(server, "a", data={"n": 1})
        await publish(server, "a", data={"n": "many"})
        await server.events.drain()

        assert seen == [Payload(n=1)]
        states = [(row.status, row.last_error) for row in await deliveries(server)]
        assert states[0] == ("delivered", None)
        assert states[1][0] == "dead"
        assert "data.n" in (states[1][1] or "")


async def test_data_of_an_erased_subject_are_gone(database_url: str) -> None:
    seen = Seen()
    async with serving(database_url, lambda s: s.events.subscribe("*", group="g")(seen)) as server:
        await publish(server, "a", subject="user/7", data={"name": "Ann"})
        await publish(server, "b", subject="user/8", data={"name": "Bob"})

        assert await server.events.erase("user/7") == 1
        await server.events.drain()

        assert [(one.data, one.erased) for one in seen.events] == [(None, True), ({"name": "Bob"}, False)]


async def test_a_listener_hears_what_comes_from_now_on(database_url: str) -> None:
    server = Server(database_url)
    server.register(Note)
    server.events.enable()
    async with server.lifespan():
        await publish(server, "before")
        async with server.events.listen("mine.*") as events:
            await publish(server, "mine.one", "other", "mine.two")
            async with asyncio.timeout(20):
                heard = [await anext(events), await anext(events)]

    assert [event.type for event in heard] == ["mine.one", "mine.two"]


async def test_events_are_handled_while_the_server_runs(database_url: str) -> None:
    done = asyncio.Event()

    def declare(server: Server) -> None:
        async def take(event: Event) -> None:
            done.set()

        server.events.subscribe("a", group="g")(take)

    server = Server(database_url)
    server.register(Note)
    declare(server)
    async with server.lifespan():
        await publish(server, "a")
        async with asyncio.timeout(20):
            await done.wait()
