"""`server.rollup`: a total is what a recount would give, at every commit, whoever writes the rows and how."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from maniflex import (
    DeclarationError,
    Model,
    Server,
    WithDeletedAt,
    field,
    has_many,
    scheduled,
)
from maniflex.testing import FakeClock, client
from tests.kit.http import created, data_of, error_of


class Shop(Model, optimistic_lock=True):
    name: str = ""
    revenue: Decimal = field(default=Decimal(0), readonly=True)


class Order(Model, WithDeletedAt, versioned=True, events=True, restore=True):
    title: str = ""
    shop_id: str | None = field(default=None, on_delete="set_null")
    total: Decimal = field(default=Decimal(0), readonly=True)
    open_lines: int = field(default=0, readonly=True)
    cheapest: Decimal | None = field(default=None, readonly=True)
    latest: datetime | None = field(default=None, readonly=True)
    mean: float | None = field(default=None, readonly=True)
    lines: list[Line] = has_many(nested=True)


class Line(Model, WithDeletedAt, restore=True):
    order_id: str | None = field(default=None, filterable=True, on_delete="cascade")
    price: Decimal = Decimal(1)
    pieces: int = 1
    state: str = "open"
    at: datetime | None = None
    gone_at: datetime | None = scheduled(soft_delete=True)


def a_server(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(Shop, Order, Line)
    server.rollup(Order, "total", "sum", Line, "price")
    server.rollup("Order", "open_lines", "count", "Line", on="order_id", where={"state": "open"})
    server.rollup(Order, "cheapest", "min", Line, "price")
    server.rollup(Order, "latest", "max", Line, "at")
    server.rollup(Order, "mean", "avg", Line, "pieces")
    server.rollup(Shop, "revenue", "sum", Order, "total")
    return server


async def require_recount(server: Server) -> None:
    """Every total is what a recount of the live rows gives."""
    lines = await server.db(Line).list()
    orders = await server.db(Order).list()
    for order in orders:
        own = [line for line in lines if line.order_id == order.id]
        assert order.total == sum((line.price for line in own), Decimal(0)), order.title
        assert order.open_lines == sum(line.state == "open" for line in own)
        assert order.cheapest == min((line.price for line in own), default=None)
        assert order.latest == max((line.at for line in own if line.at), default=None)
        mean = sum(line.pieces for line in own) / len(own) if own else None
        assert order.mean == (None if mean is None else pytest.approx(mean))
    for shop in await server.db(Shop).list():
        assert shop.revenue == sum((o.total for o in orders if o.shop_id == shop.id), Decimal(0))


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    server = a_server()
    async with client(server, database=database_url):
        yield server


async def test_totals_follow_every_kind_of_write(server: Server) -> None:
    shop = await server.db(Shop).create(name="s")
    one, other = [await server.db(Order).create(title=title, shop_id=shop.id) for title in ("one", "other")]
    db = server.db(Line)
    lines = await db.create_many(
        {"order_id": one.id, "price": Decimal(f"{n}.10"), "at": datetime(2026, 1, n + 1, tzinfo=UTC)}
        for n in range(5)
    )
    await require_recount(server)
    assert (await server.db(Order).read(one.id)).total == Decimal("10.50")
    assert (await server.db(Shop).read(shop.id)).revenue == Decimal("10.50")
    await db.update(lines[0].id, price=Decimal(100))
    await db.update(lines[1].id, state="closed")
    await require_recount(server)
    await db.update(lines[2].id, order_id=other.id)
    await require_recount(server)
    assert (await server.db(Order).read(other.id)).total == Decimal("2.10")
    await db.update(lines[2].id, order_id=None)
    await db.increment(lines[3].id, price=Decimal("0.05"), pieces=4)
    await require_recount(server)
    await db.delete(lines[4].id)
    await require_recount(server)
    await db.restore(lines[4].id)
    await require_recount(server)
    await server.db(Order).delete(one.id)
    await require_recount(server)
    assert (await server.db(Shop).read(shop.id)).revenue == 0
    await server.db(Shop).delete(shop.id)
    await require_recount(server)


async def test_a_transaction_that_rolls_back_leaves_totals_as_they_were(server: Server) -> None:
    order = await server.db(Order).create(title="o")

    async def write_and_fail() -> None:
        async with server.transaction():
            await server.db(Line).create(order_id=order.id)
            assert (await server.db(Order).read(order.id)).total == 1
            raise LookupError

    with pytest.raises(LookupError):
        await write_and_fail()
    assert (await server.db(Order).read(order.id)).total == 0


async def test_no_client_may_set_a_total_and_its_tag_changes_with_the_rows(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        made = await created(http, "/api/orders", title="o", total="99")
        assert Decimal(str(made["total"])) == 0
        body = {"title": "n", "lines": [{"price": "1.25"}, {"price": "2"}]}
        nested = data_of(await http.post("/api/orders", json=body), 201)
        shown = data_of(await http.get(f"/api/orders/{nested['id']}"))
        assert Decimal(str(shown["total"])) == Decimal(str(nested["total"])) == Decimal("3.25")
        versions = data_of(await http.get(f"/api/orders/{nested['id']}/history"))
        assert Decimal(str(versions[0]["snapshot"]["total"])) == Decimal("3.25")
        await require_recount(server)


async def test_scheduled_deletes_count(database_url: str) -> None:
    clock = FakeClock()
    server = a_server()
    async with client(server, database=database_url, clock=clock):
        order = await server.db(Order).create(title="o")
        await server.db(Line).create(order_id=order.id, gone_at=clock.now() + timedelta(hours=1))
        clock.advance(timedelta(hours=2))
        await server.scheduled.sweep()
        assert (await server.db(Order).read(order.id)).open_lines == 0
        await require_recount(server)


async def test_a_backfill_visits_every_parent(server: Server) -> None:
    orders = [await server.db(Order).create(title=f"{n}") for n in range(3)]
    await server.db(Line).create(order_id=orders[0].id, price=Decimal(5))
    await server.raw_exec("UPDATE orders SET open_lines = 7")
    assert await server.backfill_rollups() == 3
    await require_recount(server)
    assert await server.backfill_rollups() == 0


async def test_sixty_four_writers_end_with_what_a_recount_gives(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        shops = [await created(http, "/api/shops", name=f"{n}") for n in range(2)]
        orders = [
            await created(http, "/api/orders", title=f"{n}", shop_id=shops[n % 2]["id"]) for n in range(4)
        ]
        lines = [
            await created(http, "/api/lines", order_id=orders[n % 4]["id"], price=f"{n}.5") for n in range(16)
        ]

        async def write(n: int) -> None:
            chance = random.Random(n)
            for _ in range(6):
                order, line = chance.choice(orders)["id"], chance.choice(lines)["id"]
                path, body = f"/api/lines/{line}", {"price": str(chance.randint(1, 99))}
                match chance.randrange(5):
                    case 0:
                        answer = await http.post("/api/lines", json={"order_id": order, **body})
                    case 1:
                        answer = await http.patch(path, json=body)
                    case 2:
                        answer = await http.patch(path, json={"order_id": order})
                    case 3:
                        answer = await http.delete(path)
                    case _:
                        answer = await http.post(f"{path}/restore")
                assert answer.status_code < 500, answer.text

        async def watch() -> None:
            for _ in range(10):
                async with server.transaction(isolation="repeatable read", read_only=True):
                    await require_recount(server)
                await asyncio.sleep(0)

        await asyncio.gather(watch(), *map(write, range(64)))
        await require_recount(server)


async def test_opposite_moves_do_not_deadlock(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        one, other = [await created(http, "/api/orders", title=title) for title in ("one", "other")]
        first = await created(http, "/api/lines", order_id=one["id"])
        second = await created(http, "/api/lines", order_id=other["id"])

        async def move(line: dict[str, Any], places: list[dict[str, Any]]) -> list[httpx.Response]:
            path = f"/api/lines/{line['id']}"
            return [await http.patch(path, json={"order_id": place["id"]}) for place in places * 15]

        answers = await asyncio.gather(move(first, [other, one]), move(second, [one, other]))
        assert {answer.status_code for some in answers for answer in some} == {200}
        await require_recount(server)


def test_mistakes_of_declarations_are_told_at_once() -> None:
    class Parent(Model):
        total: int = field(default=0, readonly=True)
        open: int = 0
        text: str | None = field(default=None, readonly=True)
        mean: float = field(default=0.0, readonly=True)

    class Child(Model):
        parent_id: str
        other_id: str = field(relation="Parent")
        number: int = 0
        name: str = ""

    server = Server(database=":memory:")
    server.register(Parent, Child)
    server.rollup(Parent, "totl", "sum", Child, "number", on="parent_id")
    server.rollup(Parent, "open", "sum", Child, "number", on="parent_id")
    server.rollup(Parent, "total", "median", Child, "number", on="parent_id")
    server.rollup(Parent, "total", "sum", Child, "number")
    server.rollup(Parent, "text", "sum", Child, "name", on="parent_id")
    server.rollup(Parent, "mean", "avg", Child, "number", on="parent_id")
    server.rollup(Parent, "total", "count", "Chld")
    server.rollup(Parent, "total", "count", Child, on="parent_id", where={"nmber": 1})
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    text = "\n".join(refused.value.problems)
    for part in (
        "no field 'totl'; did you mean 'total'?",
        "open must be readonly",
        "op='median' is none of",
        "several keys to it (parent_id, other_id); say which with on=",
        "name is no number",
        "mean must be nullable",
        "no model named 'Chld'",
        "where:",
        "is one of another rollup already",
    ):
        assert part in text, (part, text)


async def test_a_total_that_breaks_a_rule_of_its_field_refuses_the_row(database_url: str) -> None:
    class Box(Model):
        weight: int = field(default=0, readonly=True, max=10)

    class Thing(Model):
        box_id: str
        weight: int

    server = Server()
    server.register(Box, Thing)
    server.rollup(Box, "weight", "sum", Thing, "weight")
    async with client(server, database=database_url) as http:
        box = await created(http, "/api/boxes")
        await created(http, "/api/things", box_id=box["id"], weight=7)
        refused = await http.post("/api/things", json={"box_id": box["id"], "weight": 4})
        error_of(refused, 422, "VALIDATION_FAILED")
        assert data_of(await http.get(f"/api/boxes/{box['id']}"))["weight"] == 7
