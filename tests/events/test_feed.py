"""The feed among its neighbours: other processes, pruning, groups that come while others are routed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex import Model, Server
from maniflex.background.feed.model import EventGroup
from maniflex.background.feed.store import FeedStore
from maniflex.errors import CursorGone
from maniflex.events import Event
from maniflex.testing.clock import FakeClock
from tests.events.test_bridges import ListBus
from tests.kit.waiting import eventually

HOUR = timedelta(hours=1)


@asynccontextmanager
async def a_feed(url: str, *groups: str, **settings: Any) -> AsyncIterator[tuple[Server, list[str]]]:
    """A server whose groups take everything and say what they took."""
    server = Server(url, **{"background": False, **settings})
    server.events.enable()
    seen: list[str] = []
    for name in groups:

        async def take(event: Event, name: str = name) -> None:
            seen.append(f"{name} {event.type}")

        server.events.subscribe("*", group=name)(take)
    async with server.lifespan():
        yield server, seen


async def publish(server: Server, *types: str, **values: Any) -> None:
    for type in types:
        await server.events.publish(type, outside_transaction=True, **values)


# -- pauses


async def test_a_group_that_another_process_pauses_waits_here_too(database_url: str) -> None:
    """A relay learns of it, also in the middle of its batch, and what it holds is handed back."""
    going_on = asyncio.Event()
    server = Server(database_url, event_poll_interval=0.05)
    seen: list[str] = []

    @server.events.subscribe("*", group="g")
    async def take(event: Event) -> None:
        seen.append(event.type)
        await going_on.wait()

    async with server.lifespan(), a_feed(database_url) as (other, _):
        await publish(other, "a", "b", "c", key="one")
        await eventually(lambda: seen)
        await other.events.pause("g")
        await eventually(lambda: "g" in server.events._paused)
        going_on.set()
        await publish(other, "d")
        await eventually(lambda: is_routed(other))
        assert seen == ["a"]

        await other.events.resume("g")
        await eventually(lambda: len(seen) == 4)
        assert seen[:3] == ["a", "b", "c"]


async def is_routed(server: Server) -> bool:
    return not await server.events.store.unrouted_count()


async def test_a_drainer_asks_each_time_who_is_paused(database_url: str) -> None:
    async with a_feed(database_url, "g") as (server, seen), a_feed(database_url) as (other, _):
        await server.events.drain()
        await other.events.pause("g")
        await publish(other, "a")
        assert await server.events.drain() == 0

        await other.events.resume("g")
        assert await server.events.drain() == 1
        assert seen == ["g a"]


# -- routing


async def test_a_group_that_begins_while_others_are_routed_misses_nothing(postgres_url: str) -> None:
    """It and an event behind it are committed after the router read the groups, and before it moved them."""
    async with a_feed(postgres_url, "g") as (server, _), a_feed(postgres_url, "g", "late") as (other, seen):
        await other.events.forget("late")
        await publish(server, "a")
        store = SlowStore(server.events.store.adapter)
        routing = asyncio.create_task(store.route(datetime.now(UTC)))
        await store.has_groups.wait()
        other.events._has_begun = False  # it is started anew
        now = datetime.now(UTC)
        await other.events.store.serve_group("late", "handler", ["*"], ordered=True, from_now=True, now=now)
        await publish(other, "b")
        store.may_go_on.set()
        await routing

        await other.events.drain()

        assert "late b" in seen


class SlowStore(FeedStore):
    """A store that waits between reading the groups and the events."""

    def __init__(self, adapter: Any) -> None:
        super().__init__(adapter)
        self.has_groups, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def _handler_groups(self, tx: Any) -> Any:
        groups = await super()._handler_groups(tx)
        self.has_groups.set()
        await self.may_go_on.wait()
        return groups


# -- transactions of the application that stand still


class Order(Model, events=True):
    """What emits."""

    total: int = 0


async def test_a_stuck_transaction_delays_its_own_events_alone(postgres_url: str) -> None:
    server, seen = Server(postgres_url, event_poll_interval=timedelta(milliseconds=50)), list[str]()
    server.register(Order)

    @server.events.subscribe("*", group="g")
    async def take(event: Event) -> None:
        seen.append(f"{event.type} {event.data['total']}")

    is_stored, may_commit = asyncio.Event(), asyncio.Event()

    async def stand_still() -> None:
        async with server.transaction():
            await server.db(Order).create(total=1)
            await server.db(Order).update(orders[0].id, total=2)
            is_stored.set()
            await may_commit.wait()

    async with server.lifespan(), asyncio.timeout(30):
        orders = [await server.db(Order).create(total=0) for _ in range(2)]
        await eventually(lambda: len(seen) == 2)
        stuck = asyncio.create_task(stand_still())
        await is_stored.wait()

        await server.db(Order).update(orders[1].id, total=3)
        await server.db(Order).delete(orders[1].id)
        await eventually(lambda: len(seen) == 4)
        assert seen[2:] == ["order.updated 3", "order.deleted 3"]
        assert len(await server.events.read()) == 4

        may_commit.set()
        await stuck
        await eventually(lambda: len(seen) == 6)
    assert seen[4:] == ["order.created 1", "order.updated 2"]


async def test_a_stuck_reader_delays_nothing(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    async with a_feed(sqlite_url, "g") as (server, seen):
        await publish(server, "a")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM event_log").fetchone()

        await publish(server, "b")
        await server.events.drain()
        assert seen == ["g a", "g b"]
        reader.close()


@pytest.mark.parametrize("is_freed", [True, False])
async def test_a_start_waits_for_whoever_writes(
    sqlite_url: str, is_freed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_feed(sqlite_url) as (server, _):  # which makes the tables
        await publish(server, "a")
    writer = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    server, seen = Server(sqlite_url, lock_timeout=timedelta(seconds=0.3)), list[str]()

    @server.events.subscribe("*", group="g", start="beginning")
    async def take(event: Event) -> None:
        seen.append(event.type)

    async def free() -> None:
        await eventually(lambda: "could not write down" in caplog.text or is_freed)
        writer.execute("ROLLBACK")

    async with asyncio.timeout(30):
        freeing = asyncio.create_task(free())
        async with server.lifespan():
            await freeing
            await eventually(lambda: seen == ["a"])
    writer.close()
    assert ("could not write down who takes events" in caplog.text) is not is_freed


# -- pruning


async def test_positions_go_on_after_everything_was_removed(database_url: str) -> None:
    clock = FakeClock()
    async with a_feed(database_url, "g", clock=clock) as (server, _):
        await publish(server, "a", "b", "c")
        await server.events.drain()
        old_cursor = (await server.events.position()).replace(":3", ":1")
        clock.advance(HOUR)
        assert await prune(server, clock) == 3
        last_cursor = await server.events.position()
    async with a_feed(database_url, "g", clock=clock) as (server, seen):
        await publish(server, "d")
        await server.events.drain()

        assert [event.position for event in await server.events.read()] == [4]
        assert [event.type for event in await server.events.read(after=last_cursor)] == ["d"]
        assert seen == ["g d"]
        with pytest.raises(CursorGone):
            await server.events.read(after=old_cursor)


async def prune(server: Server, clock: FakeClock, limit: int = 500) -> int:
    return await server.events.store.prune(clock.now() - HOUR / 2, limit, clock.now())


async def test_old_events_go_however_many_before_them_are_needed_and_young_ones_stay(
    database_url: str,
) -> None:
    clock = FakeClock()
    async with a_feed(database_url, clock=clock) as (server, _):
        await server.events.store.serve_group(
            "g", "handler", ["needed"], ordered=True, from_now=True, now=clock.now()
        )
        await publish(server, *["needed"] * 5, *["old"] * 8)
        await server.events.drain()
        clock.advance(HOUR)
        await publish(server, *["young"] * 6)
        await server.events.drain()

        assert [await prune(server, clock, limit=3) for _ in range(4)] == [3, 3, 2, 0]

        kept = await server.events.read(limit=100)
        assert [event.type for event in kept] == ["needed"] * 5 + ["young"] * 6


async def test_what_is_needed_is_not_removed(database_url: str) -> None:
    """An event without a position, one that waits for its function, one that a group has not come to."""
    clock = FakeClock()
    async with a_feed(database_url, "g", clock=clock) as (server, seen):
        await publish(server, "waits")
        await server.events.store.route(clock.now())
        await publish(server, "unrouted")
        clock.advance(HOUR)
        assert await prune(server, clock) == 0

        await server.events.drain()
        assert seen == ["g waits", "g unrouted"]
        store = server.events.store
        await store.serve_group("b", "bridge", ["*"], ordered=True, from_now=False, now=clock.now())
        assert await prune(server, clock) == 0

        assert await server.events.forget("b")
        assert await prune(server, clock) == 2


async def test_a_bridge_whose_code_is_gone_does_not_keep_events_for_ever(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with a_feed(database_url, clock=clock) as (server, _):
        store = server.events.store
        await publish(server, "before")
        await server.events.drain()
        await store.serve_group("bridge-list", "bridge", ["*"], ordered=True, from_now=True, now=clock.now())
        await publish(server, "a", "b")
        await server.events.drain()
        clock.advance(HOUR / 2)
        assert await prune(server, clock) == 0  # a broker may be away as long as that
        clock.advance(HOUR)
        assert await prune(server, clock) == 3

    bus = ListBus()
    server = Server(database_url, background=False, clock=clock)
    server.events.use(bus, group="bridge-list")
    with caplog.at_level(logging.ERROR):
        async with server.lifespan():
            pass
    assert "bridge bridge-list stood at 1, and events up to 3 are not kept any more" in caplog.text


async def test_a_cursor_before_a_hole_is_gone(database_url: str) -> None:
    """An old event that is still needed does not make the removed ones behind it unnoticed."""
    clock = FakeClock()
    async with a_feed(database_url, clock=clock) as (server, _):
        await server.events.store.serve_group(
            "g", "handler", ["needed"], ordered=True, from_now=True, now=clock.now()
        )
        await publish(server, "needed", "b", "c", "d")
        await server.events.drain()
        epoch = (await server.events.position()).partition(":")[0]
        clock.advance(HOUR)

        assert await prune(server, clock) == 3

        with pytest.raises(CursorGone):
            await server.events.read(after=f"{epoch}:1")
        assert await server.events.read(after=f"{epoch}:4") == []


@pytest.mark.parametrize(
    "cursor", ["", "x", ":", "1", "{e}", "{e}:", "{e}:-1", "{e}:x", "{e}:9", "{e}:" + "9" * 25]
)
async def test_what_is_no_cursor_of_this_feed_is_gone(sqlite_url: str, cursor: str) -> None:
    async with a_feed(sqlite_url) as (server, _):
        await publish(server, "a")
        await server.events.drain()
        epoch = (await server.events.position()).partition(":")[0]

        with pytest.raises(CursorGone):
            await server.events.read(after=cursor.replace("{e}", epoch))


# -- groups


async def test_a_group_that_is_served_says_so_again(database_url: str) -> None:
    clock = FakeClock()
    async with a_feed(database_url, "g", clock=clock) as (server, _):
        clock.advance(HOUR)
        await server.events.drain()

        [group] = await server.db(EventGroup).list()
        assert group.served_at == clock.now()


async def test_an_id_that_another_source_has_published_makes_an_event_of_its_own(database_url: str) -> None:
    async with a_feed(database_url, event_source="/old") as (server, _):
        await publish(server, "a", id="bill-7", data={"n": 1})
    async with a_feed(database_url, event_source="/new") as (server, _):
        await publish(server, "a", id="bill-7", data={"n": 2})
        again = await server.events.publish("a", {"n": 3}, id="bill-7", outside_transaction=True)
        await server.events.drain()

        events = await server.events.read()
        assert [(one.source, one.id, one.data["n"]) for one in events] == [
            ("/old", "bill-7", 1),
            ("/new", "bill-7", 2),
        ]
        assert again.data == {"n": 2}


async def test_a_listener_gets_nothing_of_before_though_another_is_behind(database_url: str) -> None:
    async with a_feed(database_url) as (server, _), server.events.listen() as first:
        await publish(server, "a")
        await server.events.drain()
        async with server.events.listen() as second:
            await publish(server, "b")
            await server.events.drain()
            async with asyncio.timeout(20):
                assert [(await anext(first)).type for _ in "ab"] == ["a", "b"]
                assert (await anext(second)).type == "b"
