"""Groups of events that nobody serves, and bridges that stand still: each planted fault under its code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from maniflex import Server
from maniflex.events import Event
from maniflex.middleware import auth
from maniflex.testing import FakeClock
from tests.kit.doctor import Leaflet, stored
from tests.kit.waiting import eventually

HOUR = timedelta(hours=1)


def server_on(url: str, *groups: str, ago: timedelta = timedelta(0), background: bool = False) -> Server:
    clock = None if background else FakeClock(datetime.now(UTC) - ago)
    server = Server(url, clock=clock, background=background)
    server.register(Leaflet)
    server.pipeline.auth.register(auth.allow_anonymous())
    server.events.enable()
    server.doctor_ignore("T137", reason="a clock that is moved by hand")
    for name in groups:

        async def take(event: Event) -> None: ...

        server.events.subscribe("*", group=name)(take)
    return server


async def problems(server: Server) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in await stored(server)]


async def test_a_group_that_nobody_has_served_for_a_day_is_found(database_url: str) -> None:
    async with server_on(database_url, "billing", ago=25 * HOUR).lifespan():
        pass
    assert await problems(server_on(database_url)) == [("T169", "events: handler billing")]

    async with server_on(database_url, "billing").lifespan():
        pass
    assert await problems(server_on(database_url)) == []


async def test_what_waits_for_a_group_of_this_application_has_a_taker(database_url: str) -> None:
    server = server_on(database_url, "billing")
    async with server.lifespan():
        await server.events.publish("a", outside_transaction=True)
        await server.events.store.route(server.events.now())

    assert await problems(server_on(database_url, "billing")) == []
    assert await problems(server_on(database_url)) == [("T161", "messages of maniflex.event.billing")]


async def test_a_process_says_that_it_takes_the_events_of_its_groups(database_url: str) -> None:
    server = server_on(database_url, "billing", background=True)
    async with server.lifespan():
        await eventually(server.processes.list)
        [process] = await server.processes.list()
        assert process.takes_message("maniflex.event.billing")
        assert not process.takes_message("maniflex.event.other")


async def test_a_bridge_that_stands_still_is_found(database_url: str) -> None:
    server = server_on(database_url, ago=HOUR)
    async with server.lifespan():
        now = server.events.now()
        await server.events.store.serve_group(
            "bridge-redis", "bridge", ["*"], ordered=True, from_now=True, now=now
        )
        assert await problems(server_on(database_url)) == []
        await server.events.publish("a", outside_transaction=True)
        await server.events.drain()

    assert await problems(server_on(database_url)) == [("T170", "events: bridge bridge-redis")]
