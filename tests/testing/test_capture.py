"""`testing.capture` gives the events of a block, as they were committed."""

from __future__ import annotations

import pytest

from maniflex import DeclarationError, Model, Server, ValidationFailed
from maniflex.events import Event
from maniflex.testing import capture, client


class Order(Model, events=True):
    """What emits."""

    total: int = 0


def a_server() -> Server:
    server = Server()
    server.register(Order)
    return server


async def fail_behind_an_order(server: Server) -> None:
    async with server.transaction():
        await server.db(Order).create(total=1)
        raise ZeroDivisionError


async def test_the_events_of_a_block_are_captured(database_url: str) -> None:
    server, handled = a_server(), list[str]()

    @server.events.subscribe("*")
    async def take(event: Event) -> None:
        handled.append(event.type)

    async with client(server, database=database_url) as http:
        await http.post("/api/orders", json={"total": 1})
        async with capture(server) as events:
            order = (await http.post("/api/orders", json={"total": 2})).json()["data"]
            [first] = await events.read()
            await http.patch(f"/api/orders/{order['id']}", json={"total": 3})
            with pytest.raises(ZeroDivisionError):
                await fail_behind_an_order(server)
        await http.delete(f"/api/orders/{order['id']}")

    assert first.record_id == order["id"]
    assert [event.type for event in events] == ["order.created", "order.updated"]
    assert events[1].changed == ("total",)
    assert len(events) == 2
    assert repr(events) == "<captured: order.created, order.updated>"
    assert handled == []


async def test_patterns_choose_and_a_quiet_block_has_none(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        async with capture(server, "*.deleted", "mine.*") as events:
            await http.post("/api/orders", json={"total": 1})
            await server.events.publish("mine.told", outside_transaction=True)
        async with capture(server) as none:
            pass
        with pytest.raises(ValidationFailed):
            async with capture(server, "order..*"):
                pass
    assert [event.type for event in events] == ["mine.told"]
    assert list(none) == []


async def test_a_server_without_events_says_so() -> None:
    server = Server()
    async with client(server):
        with pytest.raises(DeclarationError, match="the feed of events is not in use"):
            async with capture(server):
                pass
