"""Events leave with the transaction that made them, and say what happened and no secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import DeclarationError, Model, Server, ValidationFailed, WithDeletedAt, field, has_many
from maniflex.errors import TransactionError
from maniflex.events import Emit, Event
from tests.kit.servers import started


class Order(Model, WithDeletedAt, events=True):
    """What emits."""

    total: int = field(default=0, filterable=True)
    note: str | None = None
    secret: str | None = field(default=None, hidden=True)
    pin: str | None = field(default=None, writeonly=True)
    lines: list[Line] = has_many()


class Line(Model, events=Emit(data="id")):
    """What goes with an order."""

    order_id: str = field(on_delete="cascade")


async def logged(server: Server, *patterns: str) -> list[Event]:
    await server.events.drain()
    return await server.events.read(patterns=patterns or ("*",))


async def test_every_write_of_a_model_makes_one_event(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        orders = server.db(Order)
        order = await orders.create(total=7, secret="s3cret", pin="1234")
        await orders.update(order.id, total=8, note="new")
        await orders.increment(order.id, total=1)
        await orders.delete(order.id)
        await orders.restore(order.id)

        events = await logged(server)

        assert [event.type for event in events] == [
            "order.created",
            "order.updated",
            "order.updated",
            "order.deleted",
            "order.restored",
        ]
        assert [event.position for event in events] == [1, 2, 3, 4, 5]
        assert {event.subject for event in events} == {f"order/{order.id}"}
        assert [event.changed for event in events] == [None, ("total", "note"), ("total",), None, None]
        created = events[0]
        assert created.data["total"] == 7
        assert (created.model, created.operation, created.record_id) == ("Order", "created", order.id)
        assert "secret" not in created.data
        assert "pin" not in created.data


async def test_a_write_that_changes_nothing_visible_makes_none(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        order = await server.db(Order).create(total=7)
        await server.db(Order).update(order.id, total=7)
        await server.db(Order).update(order.id, secret="other", pin="4321")

        assert [event.type for event in await logged(server)] == ["order.created"]


async def test_a_cascade_makes_an_event_of_each_row(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        order = await server.db(Order).create(total=7)
        for _ in range(3):
            await server.db(Line).create(order_id=order.id)
        await server.events.drain()
        cursor = await server.events.position()

        await server.db(Order).delete(order.id)
        await server.events.drain()

        events = await server.events.read(after=cursor)
        assert sorted(event.type for event in events) == ["line.deleted"] * 3 + ["order.deleted"]
        assert all(set(event.data) == {"id"} for event in events if event.model == "Line")


async def fail_behind_events(server: Server) -> None:
    async with server.transaction():
        await server.db(Order).create(total=1)
        await server.events.publish("mine.happened", {"n": 1})
        raise ZeroDivisionError


async def test_nothing_is_left_of_what_is_rolled_back(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        with pytest.raises(ZeroDivisionError):
            await fail_behind_events(server)

        assert await logged(server) == []


async def test_an_event_of_ones_own_is_published_in_a_transaction(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        with pytest.raises(TransactionError):
            await server.events.publish("mine.happened")

        async with server.transaction():
            first = await server.events.publish("mine.happened", {"n": 1}, subject="thing/1", id="once")
        async with server.transaction():
            again = await server.events.publish("mine.happened", {"n": 2}, id="once")
        await server.events.publish("mine.else", outside_transaction=True, headers={"region": "eu"})

        events = await logged(server)
        assert [(event.type, event.data, event.key) for event in events] == [
            ("mine.happened", {"n": 1}, "thing/1"),
            ("mine.else", None, None),
        ]
        assert (first.id, again.id, again.data) == ("once", "once", {"n": 1})
        assert events[1].headers == {"region": "eu"}
        assert events[0].source == "/maniflex"


class Placed(BaseModel):
    """The data of a declared type."""

    total: int


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"type": "order placed"}, "type"),
        ({"type": "mine.placed", "data": {"total": "x"}}, "data.total"),
        ({"type": "mine.other", "data": {"lines": [object()]}}, "data.lines[0]"),
        ({"type": "mine.other", "headers": {"tenantid": "x"}}, "headers.tenantid"),
        ({"type": "mine.other", "data": "x" * 300_000}, "data"),
    ],
)
async def test_what_is_no_event_is_refused_where_it_is_published(
    sqlite_url: str, values: dict[str, Any], place: str
) -> None:
    server = Server(sqlite_url, background=False)
    server.register(Order, Line)
    server.events.declare("mine.placed", Placed)
    async with server.lifespan():
        with pytest.raises(ValidationFailed) as refusal:
            await server.events.publish(**values, outside_transaction=True)

        assert isinstance(refusal.value.details, list)
        assert [detail["field"] for detail in refusal.value.details] == [place]
        assert await logged(server) == []


async def test_a_record_that_is_published_leaves_its_secrets_behind(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        order = await server.db(Order).create(total=7, secret="s3cret", pin="1234")

        await server.events.publish("mine.order", {"order": order}, outside_transaction=True)

        [event] = await logged(server, "mine.*")
        assert event.data["order"]["total"] == 7
        assert not {"secret", "pin"} & event.data["order"].keys()


async def test_a_record_too_large_for_an_event_is_written_all_the_same(database_url: str) -> None:
    async with started(database_url, Order, Line, background=False) as server:
        order = await server.db(Order).create(note="x" * 300_000)

        [event] = await logged(server)

        assert (event.data, event.dataref) == (None, f"/api/orders/{order.id}")


async def test_a_late_commit_gets_a_later_position(postgres_url: str) -> None:
    async with started(postgres_url, Order, Line, background=False) as server:
        is_stored, may_commit = asyncio.Event(), asyncio.Event()

        async def commit_late() -> None:
            async with server.transaction():
                await server.events.publish("late")
                is_stored.set()
                await may_commit.wait()

        late = asyncio.create_task(commit_late())
        await is_stored.wait()
        await server.events.publish("early", outside_transaction=True)
        [early] = await logged(server)
        cursor = await server.events.position()
        may_commit.set()
        await late
        await server.events.drain()

        assert early.type == "early"
        assert [event.type for event in await server.events.read(after=cursor)] == ["late"]


async def test_mistakes_of_all_declarations_stop_the_start(sqlite_url: str, tmp_path: Any) -> None:
    class Elsewhere(Model, database=f"sqlite:///{tmp_path}/other.db"):
        """In another database."""

        name: str = ""

    server = Server(sqlite_url)
    server.register(Order, Line, Elsewhere)
    server.events.emit(Line, operations="list")
    server.events.emit(Elsewhere)
    server.events.emit("Ordr")
    server.events.emit(Order, fields=["secret"], operations="create")
    server.events.subscribe("a..b", group="one")(lambda event: None)
    server.events.subscribe("a.b", group="two")(lambda event: None)
    server.events.subscribe("a.c", group="two")(lambda event: None)

    with pytest.raises(DeclarationError) as refusal:
        server.seal()

    text = str(refusal.value)
    for part in (
        "Line: events: operations: 'list' writes nothing",
        "Elsewhere: events: it is in another database",
        "no model named 'Ordr' is registered; did you mean 'Order'?",
        "Order: events: fields: 'secret' is secret",
        "Order: events: two declarations emit for one operation",
        "group 'one': the pattern 'a..b' has an empty segment",
        "group 'two': another function subscribes as this group",
    ):
        assert part in text


async def test_an_application_without_events_has_nothing_of_them(sqlite_url: str) -> None:
    class Plain(Model):
        """Emits nothing."""

        name: str = ""

    async with started(sqlite_url, Plain) as server:
        tables = {row["name"] for row in await server.raw_query("SELECT name FROM sqlite_master")}

        assert not {name for name in tables if name.startswith("event_")}
        with pytest.raises(DeclarationError, match="the feed of events is not in use"):
            await server.events.publish("a", outside_transaction=True)
