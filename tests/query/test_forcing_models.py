"""Which models a forced condition binds: those with the field, a named one, or those of a parent."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, WithDeletedAt, field, has_many
from maniflex.errors import UnusableScope
from maniflex.model.meta import ModelMeta
from maniflex.testing import client
from tests.kit.http import data_of, error_of


class Country(Model):
    """A lookup table; nothing leads from it to the models that refer to it."""

    name: str = field(filterable=True)


class Order(Model, WithDeletedAt, aggregate=True):
    tenant_id: str = field(filterable=True, relation=None)
    country_id: str | None = field(default=None)
    lines: list[Line] = has_many()


class Line(Model, WithDeletedAt, restore=True, aggregate=True, export=True, global_searchable=True):
    name: str = field(default="line", filterable=True, sortable=True, searchable=True)
    order_id: str | None = field(default=None, filterable=True)
    follows_id: str | None = field(default=None, relation="Line")
    remarks: list[Remark] = has_many()


class Remark(Model):
    text: str = field(default="", filterable=True)
    line_id: str = field(filterable=True)


class Stray(Model):
    """Related to nothing."""

    name: str = field(default="", filterable=True)


MODELS: tuple[type[Model], ...] = (Country, Order, Line, Remark, Stray)


def forcing(*arguments: Any, **named: Any) -> Server:
    server = Server()
    server.register(*MODELS)
    server.enable_global_search()

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force(*arguments, **named)
        await next()

    @server.action("POST", "/lock/{id}")
    async def lock(ctx: Context) -> Any:
        async with ctx.transaction():
            return (await ctx.lock_for_update(Line, ctx.url_param("id"))).id

    @server.action("GET", "/tree/{id}")
    async def tree(ctx: Context) -> Any:
        rows = await ctx.recursive_query(Line, root_id=ctx.url_param("id"), parent_field="follows_id")
        return [row["id"] for row in rows]

    return server


async def furnish(server: Server) -> None:
    await server.db(Country).create(id="de", name="Germany")
    await server.db(Stray).create(name="stray")
    for tenant in ("red", "blue"):
        await server.db(Order).create(id=tenant, tenant_id=tenant, country_id="de")
        await server.db(Line).create(id=f"{tenant}-line", order_id=tenant, name=f"{tenant} thing")
        await server.db(Line).create(id=f"{tenant}-gone", order_id=tenant)
        await server.db(Line).delete(f"{tenant}-gone")
        await server.db(Remark).create(id=f"{tenant}-remark", line_id=f"{tenant}-line")
    await server.db(Line).update("blue-line", follows_id="red-line")


async def test_a_model_is_bound_through_the_record_it_belongs_to_on_every_surface(database_url: str) -> None:
    server = forcing("order.tenant_id", "red")
    async with client(server, database=database_url) as http:
        await furnish(server)

        listed = await http.get("/api/lines")
        remarks = data_of(await http.get("/api/remarks?include=line&sort=id"))
        joined = data_of(await http.get("/api/remarks?filter=line.name:contains:thing"))
        orders = data_of(await http.get("/api/orders?include=lines&filter=id:not_null"))
        counted = data_of(await http.get('/api/lines/aggregate?aggregate={"select":[{"op":"count"}]}'))
        exported = (await http.get("/api/lines/export")).text
        searched = data_of(await http.get("/api/search?q=thing&models=Line"))
        tree = data_of(await http.get("/api/tree/red-line"))
        locks = [(await http.post(f"/api/lock/{name}-line")).status_code for name in ("red", "blue")]

    assert [row["id"] for row in data_of(listed)] == ["red-line"]
    assert listed.json()["meta"]["total"] == 1
    assert {row["id"]: "line" in row for row in remarks} == {"red-remark": True, "blue-remark": False}
    assert [row["id"] for row in joined] == ["red-remark"]
    assert {row["id"]: len(row["lines"]) for row in orders} == {"red": 1, "blue": 0}
    assert counted == [{"count": 1}]
    assert "red thing" in exported
    assert "blue thing" not in exported
    assert [hit["id"] for hit in searched] == ["red-line"]
    assert tree == ["red-line"]
    assert locks == [200, 404]


async def test_writes_are_bound_through_the_record_too(database_url: str) -> None:
    server = forcing("order.tenant_id", "red")
    async with client(server, database=database_url) as http:
        await furnish(server)
        for foreign in ("blue-line", "nobody"):
            error_of(await http.get(f"/api/lines/{foreign}"), 404, "NOT_FOUND")
            error_of(await http.patch(f"/api/lines/{foreign}", json={"name": "x"}), 404, "NOT_FOUND")
            error_of(await http.delete(f"/api/lines/{foreign}"), 404, "NOT_FOUND")
        error_of(await http.post("/api/lines/blue-gone/restore"), 404, "NOT_FOUND")
        data_of(await http.post("/api/lines/red-gone/restore"))

        refusals = [
            await http.request(method, path, json={"order_id": order})
            for method, path in (("POST", "/api/lines"), ("PATCH", "/api/lines/red-line"))
            for order in ("blue", "nobody")
        ]
        for refused in refusals:
            error = error_of(refused, 409, "CONFLICT")
            assert [detail["field"] for detail in error["details"]] == ["order_id"]
        for body in ({}, {"order_id": None}):
            error_of(await http.post("/api/lines", json=body), 422, "VALIDATION_FAILED")
        error_of(await http.patch("/api/lines/red-line", json={"order_id": None}), 422, "VALIDATION_FAILED")
        data_of(await http.post("/api/lines", json={"order_id": "red"}), 201)
        data_of(await http.patch("/api/lines/red-line", json={"order_id": "red", "name": "y"}))


async def test_a_deleted_parent_still_says_whose_its_rows_are(database_url: str) -> None:
    server = forcing("order.tenant_id", "red")
    async with client(server, database=database_url) as http:
        await furnish(server)
        for tenant in ("red", "blue"):
            await server.db(Order).delete(tenant)

        assert [row["id"] for row in data_of(await http.get("/api/lines"))] == ["red-line"]


async def test_a_path_may_have_several_steps(database_url: str) -> None:
    server = forcing("line.order.tenant_id", "red")
    async with client(server, database=database_url) as http:
        await furnish(server)

        assert [row["id"] for row in data_of(await http.get("/api/remarks"))] == ["red-remark"]
        error_of(await http.post("/api/remarks", json={"line_id": "blue-line"}), 409, "CONFLICT")
        data_of(await http.post("/api/remarks", json={"line_id": "red-line"}), 201)


@pytest.mark.parametrize("name", ["nothing.tenant_id", "order.nothing", "remarks.text", "lines.name"])
async def test_a_path_that_leads_nowhere_or_to_many_refuses_the_request(database_url: str, name: str) -> None:
    server = forcing(name, "red")
    async with client(server, database=database_url) as http:
        for path in ("/api/lines", "/api/orders", "/api/search?q=x"):
            error_of(await http.get(path), 500, "INTERNAL")


async def test_one_model_is_bound_and_no_other(database_url: str) -> None:
    async with client(server := forcing("name", "red thing", model=Line), database=database_url) as http:
        await furnish(server)

        lines = data_of(await http.get("/api/lines"))
        countries = data_of(await http.get("/api/countries"))
        strays = data_of(await http.get("/api/strays"))
        orders = data_of(await http.get("/api/orders?include=lines"))

    assert [row["id"] for row in lines] == ["red-line"]
    assert (len(countries), len(strays)) == (1, 1)
    assert {row["id"]: len(row["lines"]) for row in orders} == {"red": 1, "blue": 0}


async def test_the_model_can_be_named_in_any_way(database_url: str) -> None:
    server = Server()
    server.register(*MODELS)

    @server.pipeline.auth.middleware(models=[Line])
    async def bind(ctx: Context, next: Next) -> None:
        named: dict[str | None, type[Model] | ModelMeta | str] = {
            "class": Line,
            "name": "Line",
            "meta": ctx.model,
        }
        ctx.query.force("name", "red thing", model=named[ctx.header("x-by")])
        await next()

    async with client(server, database=database_url) as http:
        await furnish(server)
        for way in ("class", "name", "meta"):
            assert len(data_of(await http.get("/api/lines", headers={"x-by": way}))) == 1


@pytest.mark.parametrize(
    "model", [7, [Line], Line(name="one"), int], ids=["number", "list", "record", "class"]
)
async def test_what_is_no_model_at_all_cannot_be_bound(database_url: str, model: Any) -> None:
    server = Server()
    server.register(*MODELS)
    raised: list[Exception] = []

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        try:
            ctx.query.force("name", "red thing", model=model)
        except Exception as error:
            raised.append(error)
            raise

    async with client(server, database=database_url) as http:
        error_of(await http.get("/api/lines"), 500, "INTERNAL")

    assert [type(error) for error in raised] == [UnusableScope]


@pytest.mark.parametrize("model", [Stray, Country, "Nothing"])
async def test_a_named_model_without_the_field_refuses_every_request(database_url: str, model: Any) -> None:
    server = forcing("tenant_id", "red", model=model)
    async with client(server, database=database_url) as http:
        for path in ("/api/orders", "/api/countries", "/api/search?q=x"):
            error_of(await http.get(path), 500, "INTERNAL")


async def test_a_lookup_table_is_usable_and_what_it_leads_to_is_bound(database_url: str) -> None:
    """Countries have no tenant; orders, which refer to them, do."""
    server = forcing("tenant_id", "red")
    async with client(server, database=database_url) as http:
        await furnish(server)

        assert len(data_of(await http.get("/api/countries"))) == 1
        data_of(await http.post("/api/countries", json={"name": "France"}), 201)
        data_of(await http.patch("/api/countries/de", json={"name": "Deutschland"}))
        [order] = data_of(await http.get("/api/orders?include=country,lines"))
        assert (order["country"]["name"], [line["id"] for line in order["lines"]]) == (
            "Deutschland",
            ["red-line"],
        )
        remarks = data_of(await http.get("/api/remarks?include=line.order&sort=id"))
        assert ["order" in row["line"] for row in remarks] == [False, True]


async def test_a_model_related_to_none_that_has_the_field_is_refused(database_url: str) -> None:
    server = forcing("tenant_id", "red")
    async with client(server, database=database_url) as http:
        await furnish(server)
        error_of(await http.get("/api/strays"), 500, "INTERNAL")


async def test_a_table_of_durable_work_without_the_field_is_403(database_url: str) -> None:
    server = Server()
    server.register(*MODELS)

    async def handled(run: Any) -> None: ...

    server.work.handler("x")(handled)

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="u", tenant_id="red", roles=("admin",))
        ctx.query.force(ctx.header("x-by") or "tenant_id", "red")
        await next()

    async with client(server, database=database_url) as http:
        await furnish(server)
        by_name = {"x-by": "name"}

        error_of(await http.get("/api/workflow_run", headers=by_name), 403, "FORBIDDEN")
        error_of(await http.get("/api/workflow_event", headers=by_name), 403, "FORBIDDEN")
        assert len(data_of(await http.get("/api/lines", headers={"x-by": "name"}))) == 0
        data_of(await http.get("/api/orders"))
        data_of(await http.get("/api/workflow_run"))


class Parcel(Model, aggregate=True, global_searchable=True):
    tenant_id: str = field(filterable=True, relation=None)
    name: str = field(default="", searchable=True)
    parts: list[Part] = has_many()


class Part(Model, aggregate=True, global_searchable=True):
    name: str = field(default="", searchable=True)
    parcel_id: str = field(filterable=True)


class Invoice(Model, aggregate=True, global_searchable=True):
    """Has the field, and nothing to do with parcels."""

    tenant_id: UUID = field(relation=None)
    name: str = field(default="", searchable=True)
    paid: bool = True


class Region(Model, aggregate=True, global_searchable=True):
    """Has no tenant."""

    name: str = field(default="", searchable=True)
    visible: bool = True
    ended_at: datetime | None = None


RED, BLUE = "0198a000-0000-7000-8000-00000000000a", "0198a000-0000-7000-8000-00000000000b"


def forcing_two_ways(*also: tuple[Any, ...], model: type[Model] | None = None) -> Server:
    """Whose rows they are is said twice: of those with a tenant, and of those in a parcel."""
    server = Server()
    server.register(Parcel, Part, Invoice, Region)
    server.enable_global_search()

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", RED)
        ctx.query.force("parcel.tenant_id", RED, model=model)
        for arguments in also:
            ctx.query.force(*arguments)
        await next()

    @server.action("GET", "/find/{model}")
    async def find(ctx: Context) -> Any:
        return [hit.snippet for hit in await ctx.search("widget", models=[ctx.url_param("model")])]

    @server.action("GET", "/count/{model}")
    async def count(ctx: Context) -> Any:
        [row] = await ctx.aggregate(ctx.url_param("model"), select=[("count", None, "n")])
        return row["n"]

    return server


async def furnish_two_tenants(server: Server) -> None:
    await server.db(Region).create(name="widget region")
    for name, tenant in (("red", RED), ("blue", BLUE)):
        await server.db(Parcel).create(id=name, tenant_id=tenant, name=f"widget parcel {name}")
        await server.db(Part).create(parcel_id=name, name=f"widget part {name}")
        await server.db(Invoice).create(tenant_id=tenant, name=f"widget invoice {name}")


@pytest.mark.parametrize("model", [None, Part])
async def test_a_model_that_is_bound_in_one_of_two_ways_is_searched_and_counted(
    database_url: str, model: type[Model] | None
) -> None:
    server = forcing_two_ways(model=model)
    async with client(server, database=database_url) as http:
        await furnish_two_tenants(server)
        hits = data_of(await http.get("/api/search?q=widget"))
        parts = data_of(await http.get("/api/search?q=widget&models=Part"))
        named = [data_of(await http.get(f"/api/find/{name}")) for name in ("Parcel", "Part", "Invoice")]
        counts = [data_of(await http.get(f"/api/count/{name}")) for name in ("Parcel", "Part", "Invoice")]
        error_of(await http.get("/api/find/Region"), 500, "INTERNAL")
        error_of(await http.get("/api/count/Region"), 500, "INTERNAL")

    assert sorted(hit["snippet"] for hit in hits) == [
        "widget invoice red",
        "widget parcel red",
        "widget part red",
    ]
    assert [hit["snippet"] for hit in parts] == ["widget part red"]
    assert named == [["widget parcel red"], ["widget part red"], ["widget invoice red"]]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize(
    "also", [[("visible", True)], [("visible", True), ("paid", True)], [("ended_at", None, "is_null")]]
)
async def test_a_condition_about_something_else_does_not_open_what_has_no_tenant(
    database_url: str, also: list[tuple[Any, ...]]
) -> None:
    server = forcing_two_ways(*also)
    async with client(server, database=database_url) as http:
        await furnish_two_tenants(server)
        hits = data_of(await http.get("/api/search?q=widget"))
        error_of(await http.get("/api/find/Region"), 500, "INTERNAL")

    assert hits == []
