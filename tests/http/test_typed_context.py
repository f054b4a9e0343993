"""What middleware knows of a body, a record and a result; mypy and pyright read this file, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of


class Order(Model):
    total: int = field(filterable=True)
    note: str | None = None


class Other(Model):
    name: str


def an_office() -> tuple[Server, list[Any]]:
    server, seen = Server(), list[Any]()
    server.register(Order)

    @server.pipeline.service.middleware(models=[Order], operations=[Operation.CREATE])
    async def look(ctx: Context[Order], next: Next) -> None:
        assert_type(ctx.record, Order)
        assert_type(ctx.record.total, int)
        await next()
        assert_type(ctx.result, Order)
        seen.append(ctx.result.total)

    return server, seen


async def test_a_context_of_a_model_types_record_and_result() -> None:
    server, seen = an_office()
    async with client(server) as http:
        await created(http, "/api/orders", total=3)
    assert seen == [3]


async def test_a_context_without_a_model_knows_no_type() -> None:
    async def look(ctx: Context, next: Next) -> None:
        assert_type(ctx.record, Any)
        assert_type(ctx.result, Any)
        await next()

    server = Server()
    server.register(Order)
    server.pipeline.service.register(look)
    async with client(server) as http:
        await created(http, "/api/orders", total=3)


async def test_a_request_without_a_body_has_an_empty_one() -> None:
    server, _ = an_office()
    bodies: list[Mapping[str, Any]] = []

    async def look(ctx: Context, next: Next) -> None:
        assert "total" not in ctx.body
        assert ctx.body.get("total") is None
        bodies.append(ctx.body)
        await next()

    server.pipeline.auth.register(look)
    server.pipeline.db.register(look, operations=Operation.READS)

    @server.action("GET", "/nothing")
    async def nothing(ctx: Context) -> dict[str, int]:
        return {"names": len(ctx.body)}

    async with client(server) as http:
        assert data_of(await http.get("/api/orders")) == []
        assert data_of(await http.get("/api/nothing")) == {"names": 0}
        assert [dict(body) for body in bodies] == [{}, {}, {}]


async def test_a_field_that_was_not_sent_says_so() -> None:
    server, _ = an_office()
    messages: list[str] = []

    @server.pipeline.service.middleware(models=[Order], operations=[Operation.UPDATE])
    async def look(ctx: Context[Order], next: Next) -> None:
        with pytest.raises(AttributeError) as caught:
            print(ctx.record.total)
        messages.append(str(caught.value))
        assert ctx.field("total") is None
        assert getattr(ctx.record, "total", "absent") == "absent"
        await next()

    async with client(server) as http:
        order = await created(http, "/api/orders", total=3)
        assert (await http.patch(f"/api/orders/{order['id']}", json={"note": "x"})).status_code == 200
    assert messages == [
        "this Order has no 'total': the field was not sent or not read;"
        " ctx.field('total') is None for a field that was not sent"
    ]
    with pytest.raises(AttributeError, match="'Order' object has no attribute 'totl'"):
        print(Order(total=1).totl)  # type: ignore[attr-defined]


async def test_a_record_says_what_to_change(database_url: str) -> None:
    server, _ = an_office()
    server.register(Other)
    async with client(server, database=database_url):
        orders = server.db(Order)
        order = await orders.create(total=3, note="a")
        order.total = 4
        changed = await orders.update(order.id, order)
        assert (changed.total, changed.note, changed.created_at) == (4, "a", order.created_at)
        assert changed.updated_at >= order.updated_at
        assert (await orders.update(order.id, order, total=5)).total == 5
        another = await orders.create(total=1)
        with pytest.raises(DeclarationError, match="the record to change is"):
            await orders.update(another.id, order)
        wrong: Any = Other(name="x")
        with pytest.raises(TypeError, match="expected a Order, not a Other"):
            await orders.update(order.id, wrong)
