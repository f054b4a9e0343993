"""The feed copied to brokers, and events of others taken into it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from maniflex import Model, Server, ValidationFailed
from maniflex.background.feed.bridges import AT_ONCE
from maniflex.background.outbox.model import OutboxMessage
from maniflex.errors import DeclarationError, Unavailable
from maniflex.events import Event, InProcessBus, NatsBus, RedisBus
from maniflex.events.port import Bus
from maniflex.middleware import service
from maniflex.testing import FakeClock, client
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually

SHORT = timedelta(milliseconds=50)
COUNT = 1000  # events that are written while the broker is away


class Order(Model, events=True):
    """What emits."""

    total: int = 0


class Line(Model):
    """What emits by an entry."""

    count: int = 0


class ListBus:
    """A bus of an application: it keeps what it gets, may be away, and never takes what is too large."""

    ordered = True

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_away = False
        self.handler: Callable[[Event], Any] | None = None

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, event: Event) -> None:
        await self.publish_many([event])

    async def publish_many(self, events: Sequence[Event]) -> None:
        if self.is_away:
            raise Unavailable("the broker is away")
        if any(event.type == "too.large" for event in events):
            raise ValidationFailed("the event is too large")
        self.events += events

    async def subscribe(self, *patterns: str, handler: Callable[[Event], Any], **options: Any) -> ListBus:
        self.handler = handler
        return self

    async def cancel(self) -> None: ...

    async def forget(self, group: str, *patterns: str) -> None: ...

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


@asynccontextmanager
async def bridged(url: str, bus: Bus, **options: Any) -> AsyncIterator[Server]:
    server = Server(url, event_poll_interval=SHORT)
    server.register(Order)
    server.events.use(bus, **options)
    async with server.lifespan():
        yield server


async def publish(server: Server, *types: str) -> None:
    for type in types:
        await server.events.publish(type, outside_transaction=True)


async def test_a_bus_gets_the_events_that_it_is_used_for_in_their_order(database_url: str) -> None:
    bus = ListBus()
    async with bridged(database_url, bus, publish=["order.*", "mine.*"]) as server:
        order = await server.db(Order).create(total=1)
        await publish(server, "other.one", "mine.one")
        await server.db(Order).update(order.id, total=2)
        await eventually(lambda: len(bus.events) == 3, "the events at the bus")

    assert bus.types == ["order.created", "mine.one", "order.updated"]
    assert [event.position for event in bus.events] == [1, 3, 4]


async def test_a_bridge_that_is_paused_between_two_batches_stops_there(database_url: str) -> None:
    class PausingBus(ListBus):
        async def publish_many(self, events: Sequence[Event]) -> None:
            await super().publish_many(events)
            if len(self.events) == AT_ONCE:
                await server.events.pause("bridge-pausing")

    bus = PausingBus()
    async with bridged(database_url, bus) as server:
        many = [Event("a.b", n) for n in range(2 * AT_ONCE + 1)]
        await server.events.publish_many(many, outside_transaction=True)

        async def has_moved() -> bool:
            state = await server.events.group_state("bridge-pausing")
            return state.paused and state.position == AT_ONCE

        await eventually(has_moved, "the end of the first batch")
        [bridge] = server.events._bridges
        assert not await bridge.tick()
        assert len(bus.events) == AT_ONCE

        await server.events.resume("bridge-pausing")
        await eventually(lambda: len(bus.events) == len(many), "the rest")

    assert [event.data for event in bus.events] == list(range(len(many)))


async def test_a_broker_that_is_away_costs_no_event(database_url: str) -> None:
    bus = ListBus()
    async with bridged(database_url, bus) as server:
        bus.is_away = True
        await publish(server, *(f"a.{n}" for n in range(5)))
        await server.events.drain()
        assert bus.events == []

        bus.is_away = False
        await eventually(lambda: len(bus.events) == 5, "what was published meanwhile")

        assert bus.types == [f"a.{n}" for n in range(5)]
        assert await server.db(OutboxMessage).count(filters=[("status", "eq", "dead")]) == 0


async def test_what_is_written_while_the_broker_is_away_arrives_when_it_is_back(database_url: str) -> None:
    relay = Relay(os.environ["MANIFLEX_TEST_REDIS"])
    await relay.listen()
    bus = RedisBus(relay.same_url, prefix=f"test_{uuid4().hex[:8]}", timeout=1)
    ids: list[str] = []
    async with bridged(database_url, bus) as server:
        await bus.subscribe("order.*", handler=lambda event: ids.append(event.id), concurrency=16)
        await relay.cut()
        for _ in range(0, COUNT, 100):
            events = [Event("order.placed") for _ in range(100)]
            await server.events.publish_many(events, outside_transaction=True)
        await server.events.drain()
        assert ids == []

        await relay.listen()
        await eventually(lambda: len(ids) >= COUNT, "all that was written", patience=60)

        assert len(set(ids)) == COUNT
        assert await server.db(OutboxMessage).count(filters=[("status", "eq", "dead")]) == 0
    await relay.cut()


async def test_what_a_broker_never_takes_is_one_dead_delivery(database_url: str) -> None:
    bus = ListBus()
    async with bridged(database_url, bus) as server:
        await publish(server, "a", "too.large", "b")
        await eventually(lambda: len(bus.events) == 2, "the others at the bus")

        assert bus.types == ["a", "b"]
        [dead] = await server.db(OutboxMessage).list()
        assert (dead.kind, dead.status) == ("maniflex.event.bridge-list", "dead")
        assert "too large" in (dead.last_error or "")


async def test_two_processes_with_one_bridge_publish_each_event_once(database_url: str) -> None:
    first, second = ListBus(), ListBus()
    async with bridged(database_url, first) as one, bridged(database_url, second) as other:
        for n in range(10):
            await publish(one if n % 2 else other, f"a.{n}")
        await eventually(lambda: len(first.events) + len(second.events) == 10, "all at one of the buses")

    assert sorted([*first.types, *second.types]) == [f"a.{n}" for n in range(10)]
    assert [] in (first.types, second.types)


async def test_events_of_others_enter_the_feed_once(database_url: str) -> None:
    bus = ListBus()
    foreign = Event("billing.paid", {"n": 1}, id="1", source="/billing", tenant_id="t1")
    async with bridged(database_url, bus, ingest=["billing.*"]) as server:
        await eventually(lambda: bus.handler is not None, "the subscription")
        assert bus.handler is not None
        for event in (foreign, foreign, Event("billing.paid", id="1", source="/others")):
            await bus.handler(event)
        await bus.handler(Event("billing.own", source="/maniflex"))
        await server.events.drain()
        await publish(server, "mine")
        await eventually(lambda: bus.types == ["mine"], "what is our own")

        events = await server.events.read()
        assert [(e.type, e.id, e.source, e.tenant_id) for e in events] == [
            ("billing.paid", "1", "/billing", "t1"),
            ("billing.paid", "1", "/others", None),
            ("mine", events[2].id, "/maniflex", None),
        ]


async def test_an_event_of_others_is_kept_from_when_it_came(database_url: str) -> None:
    bus, clock = ListBus(), FakeClock()
    old = Event("billing.paid", id="1", source="/billing", time=clock.now() - timedelta(days=30))
    server = Server(database_url, clock=clock, event_poll_interval=SHORT)
    server.register(Order)
    server.events.use(bus, ingest=["billing.*"])
    async with server.lifespan():
        await eventually(lambda: bus.handler is not None, "the subscription")
        assert bus.handler is not None
        await bus.handler(old)
        await server.events.drain()
        pruner = server.events.store

        assert await pruner.prune(clock.now() - timedelta(days=7), 100, clock.now()) == 0
        [event] = await server.events.read()
        assert event.time == old.time


async def test_a_bus_within_the_process_is_fed_in_every_process(database_url: str) -> None:
    seen: list[str] = []
    bus = InProcessBus()
    async with bridged(database_url, bus) as server:
        handle = await bus.subscribe("a.*", handler=lambda event: seen.append(event.type))
        await publish(server, "a.one", "b", "a.two")
        await eventually(lambda: len(seen) == 2, "both events")
        await handle.cancel()

    assert seen == ["a.one", "a.two"]


@pytest.mark.parametrize("make", ["redis", "nats"])
async def test_a_broker_carries_the_feed_from_one_application_to_another(sqlite_url: str, make: str) -> None:
    place = f"test_{uuid4().hex[:8]}"
    buses: list[Bus] = [
        RedisBus(os.environ["MANIFLEX_TEST_REDIS"], prefix=place)
        if make == "redis"
        else NatsBus(os.environ["MANIFLEX_TEST_NATS"], stream=place, prefix=place)
        for _ in range(2)
    ]
    seller = Server(sqlite_url, event_source="/seller", event_poll_interval=SHORT)
    seller.register(Order)
    seller.events.use(buses[0])
    buyer = Server(sqlite_url + "2", event_source="/buyer", event_poll_interval=SHORT)
    buyer.events.use(buses[1], publish=(), ingest=["order.*"])
    seen: list[Event] = []
    arrived = asyncio.Event()

    @buyer.events.subscribe("order.*", group="buying")
    async def take(event: Event) -> None:
        seen.append(event)
        arrived.set()

    async with seller.lifespan(), buyer.lifespan():
        order: Order | None = None
        async with asyncio.timeout(60):
            while not arrived.is_set():  # until the subscription stands
                order = await seller.db(Order).create(total=7)
                await asyncio.wait([asyncio.ensure_future(arrived.wait())], timeout=0.5)
    assert order is not None
    assert seen[0].data["total"] == 7
    assert seen[0].source == "/seller"


async def test_an_entry_makes_events_of_what_requests_write(database_url: str) -> None:
    bus = ListBus()
    server = Server(database_url, event_poll_interval=SHORT)
    server.register(Order, Line)
    server.pipeline.db.register(service.emit(bus), models=[Line], at="after")
    async with client(server) as http:
        line = (await http.post("/api/lines", json={"count": 1})).json()["data"]
        await http.patch(f"/api/lines/{line['id']}", json={"count": 1})
        await http.patch(f"/api/lines/{line['id']}", json={"count": 2})
        await server.db(Line).update(line["id"], count=3)
        assert (await http.patch(f"/api/lines/{line['id']}", json={"count": "x"})).status_code == 422
        await server.db(Order).create()
        await server.events.drain()

        events = await server.events.read()
        assert [event.type for event in events] == ["line.created", "line.updated", "order.created"]
        assert events[0].subject == f"line/{line['id']}"


async def test_an_entry_and_a_declaration_for_one_model_stop_the_start(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.register(Order)
    server.pipeline.db.register(service.emit(), models=[Order])

    with pytest.raises(DeclarationError, match="two declarations emit for one operation"):
        server.seal()
