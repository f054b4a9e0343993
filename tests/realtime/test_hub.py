"""`Hub`: streams of a bus, with an authenticator of its own and a store for those who come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from maniflex import AuthInfo
from maniflex.errors import CursorGone
from maniflex.events import Event, InProcessBus
from maniflex.realtime import AnonymousOnly, BearerToken, Composite, Hub
from maniflex.testing import sse, websocket
from maniflex.testing.streams import HandshakeRefused

TOKENS = {"t-ada": AuthInfo("ada", tenant_id="red")}


class ListStore:
    """Keeps everything in a list; several hubs can share it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def append(self, event: Event) -> str:
        if all(one.id != event.id for one in self.events):
            self.events.append(event)
        return f"c{[one.id for one in self.events].index(event.id)}"

    async def after(self, cursor: str, limit: int) -> Sequence[tuple[str, Event]]:
        if not cursor.startswith("c") or not cursor[1:].isdecimal():
            raise CursorGone()
        start = int(cursor[1:]) + 1
        return [(f"c{start + n}", one) for n, one in enumerate(self.events[start : start + limit])]


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[tuple[Hub, InProcessBus]]:
    bus = InProcessBus()
    hub = Hub(bus, **{"authenticator": AnonymousOnly(), **options})
    await hub.start()
    try:
        yield hub, bus
    finally:
        await hub.stop()
        await bus.close()


async def test_clients_hear_of_what_is_published_on_the_bus() -> None:
    async with started() as (hub, bus), websocket(hub) as ws, sse(hub, query={"subscribe": "b.*"}) as stream:
        assert (await ws.subscribe("a.*"))["types"] == []
        await bus.publish(Event("a.one", {"n": 1}))
        await bus.publish(Event("b.one", {"n": 2}))
        message = await ws.receive()
        assert (message["data"]["type"], message["data"]["data"]) == ("a.one", {"n": 1})
        event = await stream.receive()
        assert event.data["type"] == "b.one"
        assert hub.stats().connections == 2


async def test_whoever_comes_back_goes_on_from_memory_or_begins_anew() -> None:
    async with started(resume_buffer=3) as (hub, bus):
        async with websocket(hub) as ws:
            start = (await ws.subscribe("*"))["cursor"]
            cursors = []
            for n in range(5):
                await bus.publish(Event("a.one", {"n": n}))
                cursors.append((await ws.receive())["cursor"])
        async with websocket(hub) as ws:
            await ws.subscribe("*", after=cursors[2])
            assert [(await ws.receive())["data"]["data"]["n"] for _ in range(2)] == [3, 4]
        for gone in (start, "garbage"):
            async with websocket(hub) as ws:
                await ws.subscribe("*", after=gone)
                assert (await ws.receive())["op"] == "resync"


async def test_a_store_lets_clients_go_on_in_another_process() -> None:
    store = ListStore()
    async with started(resume_store=store, resume_buffer=2) as (hub, bus):
        async with websocket(hub) as ws:
            await ws.subscribe("*")
            await bus.publish(Event("a.one", {"n": 0}))
            cursor = (await ws.receive())["cursor"]
        for n in range(1, 6):
            await bus.publish(Event("a.one", {"n": n}))
        async with websocket(hub) as ws:
            await bus.publish(Event("a.one", {"n": 6}))
            await ws.subscribe("*", after=cursor)
            assert [(await ws.receive())["data"]["data"]["n"] for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    async with started(resume_store=store) as (other, bus), websocket(other) as ws:
        await ws.subscribe("*", after=cursor)
        assert [(await ws.receive())["data"]["data"]["n"] for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        await bus.publish(Event("a.one", {"n": 7}))
        assert (await ws.receive())["data"]["data"]["n"] == 7
        await ws.subscribe("*", after="garbage")
        assert (await ws.receive())["op"] == "resync"


async def test_its_authenticator_says_who_connects() -> None:
    seen: list[str] = []

    def visibility(auth: AuthInfo, event: Event) -> bool:
        seen.append(auth.user_id)
        return True

    async with started(authenticator=BearerToken(TOKENS.get), visibility=visibility) as (hub, bus):
        for options in ({}, {"query": {"access_token": "wrong"}}, {"headers": {"authorization": "Basic x"}}):
            with pytest.raises(HandshakeRefused) as refused:
                async with websocket(hub, **options):  # type: ignore[arg-type]  # either
                    pass
            assert refused.value.status == 401
        async with websocket(hub, subprotocols=["access_token.t-ada"]) as ws:
            await ws.subscribe("*")
            await bus.publish(Event("a.one"))
            await ws.receive()
            assert seen == ["ada"]
    both = Composite(BearerToken(TOKENS.get), AnonymousOnly())
    async with started(authenticator=both) as (hub, _), websocket(hub) as ws:
        assert (await ws.subscribe("*"))["op"] == "ack"
    async with started(authenticator=Composite(BearerToken(TOKENS.get))) as (hub, _):
        with pytest.raises(HandshakeRefused):
            async with sse(hub):
                pass


async def test_it_answers_only_on_its_paths() -> None:
    async with started(ws=None) as (hub, _):
        for path, status in (("/nothing", 404), ("/sse?subscribe=a..b", 422)):
            with pytest.raises(HandshakeRefused) as refused:
                async with sse(hub, path):
                    pass
            assert refused.value.status == status
        with pytest.raises(HandshakeRefused) as refused:
            async with websocket(hub):
                pass
        assert refused.value.status == 404
