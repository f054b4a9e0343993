"""Code in a request is bound by its forced conditions, and `ctx.unscoped()` is the way around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import httpx
import pytest

from maniflex import (
    Context,
    ForeignKeyViolation,
    Model,
    Next,
    NotFound,
    Server,
    ValidationFailed,
    WithDeletedAt,
    belongs_to,
    field,
    has_many,
)
from maniflex.testing import client
from tests.kit.http import data_of

Code = Callable[[Context], Awaitable[Any]]


class Country(Model):
    """A lookup table that all tenants share."""

    name: str = field(filterable=True)


class Audit(Model):
    """A table of the application that no relation leads to."""

    text: str


class Box(Model, WithDeletedAt, restore=True):
    tenant_id: str = field(filterable=True, relation=None)
    name: str = field(default="box", filterable=True, sortable=True, searchable=True)
    size: int = field(default=1, filterable=True)
    price: Decimal = field(default=Decimal("1.50"))
    country_id: str | None = field(default=None)
    country: Country | None = belongs_to()
    parent_id: str | None = field(default=None, relation="Box")
    parts: list[Part] = has_many()


class Part(Model):
    """Has no tenant of its own: it belongs to whoever has its box."""

    name: str = field(default="part", filterable=True)
    box_id: str | None = field(default=None, filterable=True)


@asynccontextmanager
async def asking(
    database: str, code: Code, *, within: str = "action", **scope: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A server that runs `code` in a bound request, in an action or in the middleware of a list."""
    server = Server()
    server.register(Country, Audit, Box, Part)
    conditions = scope or {"tenant_id": "red"}

    async def bind(ctx: Context, next: Next) -> None:
        for name, value in conditions.items():
            ctx.query.force(name.replace("__", "."), value)
        await next()

    server.pipeline.auth.register(bind)
    if within == "action":

        @server.action("POST", "/code")
        async def act(ctx: Context) -> Any:
            return {"got": await code(ctx)}

    else:

        @server.pipeline.service.middleware(models=[Country], operations="list")
        async def inside(ctx: Context, next: Next) -> None:
            if within == "transaction":
                async with ctx.transaction():
                    got = await code(ctx)
            else:
                got = await code(ctx)
            await next()
            ctx.result = {"got": got}

    async with client(server, database=database) as http:
        await furnish(server)
        yield server, http


async def furnish(server: Server) -> None:
    await server.db(Country).create(id="de", name="Germany")
    for tenant in ("red", "blue"):
        await server.db(Box).create(id=tenant, tenant_id=tenant, name=f"{tenant} box", country_id="de")
        await server.db(Box).create(id=f"{tenant}-gone", tenant_id=tenant)
        await server.db(Box).delete(f"{tenant}-gone")
        await server.db(Part).create(id=f"{tenant}-part", box_id=tenant)
    # A reference across the border, as a careless import would leave it.
    await server.db(Box).update("red", parent_id="blue")


async def run(database: str, code: Code, **more: Any) -> Any:
    within = more.get("within", "action")
    async with asking(database, code, **more) as (_, http):
        call = http.post("/api/code") if within == "action" else http.get("/api/countries")
        return data_of(await call)["got"]


async def outcome(call: Awaitable[Any]) -> str:
    try:
        await call
    except (NotFound, ValidationFailed, ForeignKeyViolation) as error:
        return type(error).__name__
    return "done"


@pytest.mark.parametrize("within", ["action", "middleware", "transaction"])
async def test_reads_see_the_scope_alone(database_url: str, within: str) -> None:
    async def code(ctx: Context) -> Any:
        boxes = ctx.db(Box)
        [row] = await boxes.list(include=["parent", "country", "parts"])
        assert row.country is not None
        return {
            "listed": [box.id for box in await boxes.list(sorts="name")],
            "counted": await boxes.count(),
            "exists": [await boxes.exists(name) for name in ("red", "blue")],
            "by_field": await boxes.exists(tenant_id="blue"),
            "read": [await outcome(boxes.read(name)) for name in ("red", "blue")],
            "wide": [box.id for box in await boxes.list({"tenant_id": "blue"})],
            "included": ["parent" in vars(row), row.country.name, [p.id for p in row.parts]],
            "joined": await boxes.count({"parent.name": "blue box"}),
        }

    assert await run(database_url, code, within=within) == {
        "listed": ["red"],
        "counted": 1,
        "exists": [True, False],
        "by_field": False,
        "read": ["done", "NotFound"],
        "wide": [],
        "included": [False, "Germany", ["red-part"]],
        "joined": 0,
    }


@pytest.mark.parametrize("within", ["action", "middleware", "transaction"])
async def test_writes_touch_the_scope_alone(database_url: str, within: str) -> None:
    async def code(ctx: Context) -> Any:
        boxes = ctx.db(Box)
        return [
            [
                await outcome(boxes.update(name, name="changed")),
                await outcome(boxes.increment(name, size=1)),
                await outcome(boxes.increment(name, price=Decimal("0.25"))),
                await outcome(boxes.delete(name)),
                await outcome(boxes.restore(name)),
            ]
            for name in ("red", "blue", "nobody")
        ]

    async with asking(database_url, code, within=within) as (server, http):
        call = http.post("/api/code") if within == "action" else http.get("/api/countries")
        got = data_of(await call)["got"]
        red, blue = await server.db(Box).read("red"), await server.db(Box).read("blue")

    assert got == [["done"] * 5, ["NotFound"] * 5, ["NotFound"] * 5]
    assert (red.name, red.size, red.price) == ("changed", 2, Decimal("1.75"))
    assert (blue.name, blue.size, blue.price) == ("blue box", 1, Decimal("1.50"))


async def test_a_record_made_by_code_is_completed_and_never_lands_outside(database_url: str) -> None:
    async def code(ctx: Context) -> Any:
        boxes = ctx.db(Box)
        made = await boxes.create(name="new")
        whole = await boxes.create(Box(tenant_id="red", name="whole"))
        return [
            [made.tenant_id, whole.tenant_id],
            await outcome(boxes.create(name="theirs", tenant_id="blue")),
            await outcome(boxes.create(Box(tenant_id="blue", name="theirs"))),
            await outcome(boxes.update("red", tenant_id="blue")),
            await outcome(boxes.update("red", tenant_id="red")),
            await outcome(boxes.create(parent_id="blue")),
            await outcome(boxes.create(parent_id="nobody")),
        ]

    assert await run(database_url, code) == [
        ["red", "red"],
        *["ValidationFailed"] * 3,
        "done",
        *["ForeignKeyViolation"] * 2,
    ]


async def test_what_belongs_to_a_bound_record_is_bound_through_it(database_url: str) -> None:
    async def code(ctx: Context) -> Any:
        parts = ctx.db(Part)
        return [
            [part.id for part in await parts.list()],
            await parts.count(),
            await outcome(parts.read("blue-part")),
            await outcome(parts.update("blue-part", name="x")),
            await outcome(parts.delete("blue-part")),
            await outcome(parts.create(box_id="red")),
            await outcome(parts.create(box_id="blue")),
            await outcome(parts.create(box_id="nobody")),
            await outcome(parts.create(name="of nobody")),
            await outcome(parts.update("red-part", box_id="blue")),
            await outcome(parts.update("red-part", box_id=None)),
            await outcome(parts.update("red-part", box_id="red")),
        ]

    assert await run(database_url, code, box__tenant_id="red") == [
        ["red-part"],
        1,
        *["NotFound"] * 3,
        "done",
        *["ForeignKeyViolation"] * 2,
        "ValidationFailed",
        "ForeignKeyViolation",
        "ValidationFailed",
        "done",
    ]


async def test_a_condition_forced_later_binds_records_asked_for_before(database_url: str) -> None:
    async def code(ctx: Context) -> Any:
        boxes = ctx.db(Box)
        before = await boxes.count()
        ctx.query.force("size", 5)
        return [before, await boxes.count()]

    assert await run(database_url, code) == [1, 0]


async def test_tables_without_the_field_are_open_to_code(database_url: str) -> None:
    async def code(ctx: Context) -> Any:
        await ctx.db(Audit).create(text="seen")
        groups = await ctx.aggregate(Country, select=["count"])
        return [await ctx.db(Audit).count(), await ctx.db(Country).exists(name="Germany"), groups]

    assert await run(database_url, code) == [1, True, [{"count": 1}]]


async def test_unscoped_is_the_explicit_way_around(database_url: str) -> None:
    async def code(ctx: Context) -> Any:
        free = ctx.unscoped()
        [counted] = await free.aggregate(Box, select=["count"])
        tree = await free.recursive_query(Box, root_id="blue", parent_field="parent_id")
        async with free.transaction():
            locked = await free.lock_for_update(Box, "blue")
            await free.db(Box).update("blue", size=7)
            await free.raw_exec("UPDATE boxes SET name = ? WHERE id = ?", "blue chest", "blue")
        [row] = await free.raw_query("SELECT size FROM boxes WHERE id = ?", "blue")
        made = await free.db(Box).create(tenant_id="blue", name="more")
        hits = await free.search("chest", models=[Box])
        bound = await ctx.db(Box).count()
        return {
            "counted": counted["count"],
            "tree": [node["id"] for node in tree],
            "locked": locked.id,
            "size": row["size"],
            "tenant": made.tenant_id,
            "hits": [hit.id for hit in hits],
            "bound": bound,
        }

    assert await run(database_url, code) == {
        "counted": 2,
        "tree": ["blue", "red"],
        "locked": "blue",
        "size": 7,
        "tenant": "blue",
        "hits": ["blue"],
        "bound": 1,
    }


async def test_the_server_itself_is_bound_by_no_request(database_url: str) -> None:
    seen: list[int] = []

    async def code(ctx: Context) -> Any:
        seen.append(await ctx.db(Box).count())

    async with asking(database_url, code) as (server, http):
        data_of(await http.post("/api/code"))
        seen.append(await server.db(Box).count())

    assert seen == [1, 2]
