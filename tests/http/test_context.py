"""What middleware and handlers can do with a `Context`."""

from __future__ import annotations

import asyncio
import logging
from decimal import Decimal
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders, total
from tests.kit.waiting import PATIENCE


class Order(Model):
    total: Decimal = field(alias="orderTotal")
    note: str | None = None
    state: str = "open"
    owner: str = field(default="", readonly=True)


def shop() -> Server:
    server = Server()
    server.register(Order)
    return server


async def test_fields_are_raw_before_validation_and_typed_after_it(database_url: str) -> None:
    seen: list[Any] = []
    server = shop()

    async def note(ctx: Context, next: Next) -> None:
        seen.append((ctx.field("total"), ctx.field("orderTotal"), ctx.field("note", "none")))
        await next()

    server.pipeline.validate.register(note, operations=["create", "update"])
    server.pipeline.service.register(note, operations=["create", "update"])
    async with client(server, database=database_url) as http:
        order = await created(http, "/api/orders", orderTotal="1.50")
        await http.patch(f"/api/orders/{order['id']}", json={"orderTotal": "2.50", "note": "x"})
    assert seen == [
        ("1.50", "1.50", "none"),
        (Decimal("1.50"), Decimal("1.50"), None),
        ("2.50", "2.50", "x"),
        (Decimal("2.50"), Decimal("2.50"), "x"),
    ]


async def test_a_deleted_field_is_as_if_it_had_never_been_sent(database_url: str) -> None:
    server = shop()

    async def drop(ctx: Context, next: Next) -> None:
        ctx.delete_field("note")
        await next()

    server.pipeline.service.register(drop, operations=["create", "update"])
    async with client(server, database=database_url) as http:
        order = await created(http, "/api/orders", orderTotal="1", note="x", state="new")
        assert (order["note"], order["state"]) == (None, "new")
        changed = await http.patch(f"/api/orders/{order['id']}", json={"note": "y", "state": "paid"})
        assert (data_of(changed)["note"], data_of(changed)["state"]) == (None, "paid")


async def test_a_deleted_required_field_is_missed(database_url: str) -> None:
    server = shop()

    async def drop(ctx: Context, next: Next) -> None:
        ctx.delete_field("orderTotal")
        await next()

    server.pipeline.validate.register(drop, operations=["create"])
    async with client(server, database=database_url) as http:
        assert offenders(await http.post("/api/orders", json={"orderTotal": "1"})) == {
            "orderTotal": "required"
        }


async def test_set_field_reaches_the_record_and_the_row(database_url: str) -> None:
    records: list[Any] = []
    server = shop()

    @server.pipeline.service.middleware(operations=["create", "update"])
    async def stamp(ctx: Context, next: Next) -> None:
        ctx.set_field("orderTotal", "9.99")
        ctx.set_field("owner", "ada")
        records.append((ctx.record.total, ctx.record.owner, ctx.field("total")))
        await next()

    async with client(server, database=database_url) as http:
        order = await created(http, "/api/orders", orderTotal="1")
        assert (order["orderTotal"], order["owner"]) == ("9.99", "ada")
        changed = data_of(await http.patch(f"/api/orders/{order['id']}", json={"note": "x"}))
        assert (changed["orderTotal"], changed["note"]) == ("9.99", "x")
    assert records == [(Decimal("9.99"), "ada", Decimal("9.99"))] * 2


async def test_setting_a_field_that_does_not_exist_fails_loudly(sqlite_url: str) -> None:
    server = shop()

    @server.pipeline.service.middleware(operations=["create"])
    async def stamp(ctx: Context, next: Next) -> None:
        ctx.set_field("ownr", "ada")
        await next()

    async with client(server, database=sqlite_url) as http:
        error_of(await http.post("/api/orders", json={"orderTotal": "1"}), 500, "PANIC")
        assert await total(http, "/api/orders") == 0


async def test_the_record_of_an_update_has_only_what_was_sent(sqlite_url: str) -> None:
    seen: list[Any] = []
    server = shop()

    @server.pipeline.service.middleware(operations=["update"])
    async def look(ctx: Context, next: Next) -> None:
        seen.append(vars(ctx.record))
        await next()

    async with client(server, database=sqlite_url) as http:
        order = await created(http, "/api/orders", orderTotal="1")
        await http.patch(f"/api/orders/{order['id']}", json={"note": "x"})
    assert seen == [{"note": "x"}]


async def test_state_travels_with_the_request_and_no_further(sqlite_url: str) -> None:
    seen: list[Any] = []
    server = shop()

    @server.pipeline.auth.middleware()
    async def leave(ctx: Context, next: Next) -> None:
        assert "tenant" not in ctx.state
        ctx.state.tenant = "acme"
        ctx.state["plan"] = "free"
        await next()

    @server.pipeline.response.middleware()
    async def find(ctx: Context, next: Next) -> None:
        seen.append((ctx.state["tenant"], ctx.state.plan))
        with pytest.raises(AttributeError, match="nothing"):
            _ = ctx.state.nothing
        await next()

    async with client(server, database=sqlite_url) as http:
        await http.get("/api/orders")
        await http.get("/api/orders")
    assert seen == [("acme", "free")] * 2


async def test_the_request_can_be_looked_at_and_its_body_read_twice(database_url: str) -> None:
    seen: list[Any] = []
    server = shop()

    @server.pipeline.auth.middleware(operations=["create"])
    async def early(ctx: Context, next: Next) -> None:
        body = await ctx.bind_json()
        seen.append((body, ctx.request.method, ctx.request.headers["x-own"], ctx.query_param("verbose")))
        seen.append((ctx.header("X-Own"), ctx.header("x-none"), ctx.query_param("none"), ctx.url_param("id")))
        await next()
        seen.append(await ctx.request.json())

    async with client(server, database=database_url) as http:
        path = "/api/orders?verbose=a%20b&verbose=c"
        response = await http.post(path, json={"orderTotal": "1"}, headers={"X-Own": "mine"})
        assert data_of(response, 201)["orderTotal"] == "1"
    assert seen == [
        ({"orderTotal": "1"}, "POST", "mine", "a b"),
        ("mine", None, "", ""),
        {"orderTotal": "1"},
    ]


async def test_the_context_says_what_is_asked_for(sqlite_url: str) -> None:
    seen: list[Any] = []
    server = shop()

    @server.pipeline.auth.middleware()
    async def look(ctx: Context, next: Next) -> None:
        seen.append((ctx.model.name, str(ctx.operation), ctx.resource_id, ctx.url_param("id")))
        await next()

    async with client(server, database=sqlite_url) as http:
        await http.get("/api/orders")
        await http.get("/api/orders/o%201")
        await http.delete("/api/orders/o2")
    assert seen == [
        ("Order", "list", "", ""),
        ("Order", "read", "o 1", "o 1"),
        ("Order", "delete", "o2", "o2"),
    ]


async def test_roles_belong_to_an_identity(sqlite_url: str) -> None:
    server = shop()

    @server.pipeline.auth.middleware()
    async def who(ctx: Context, next: Next) -> None:
        assert not ctx.has_role("clerk")
        if user := ctx.header("x-user"):
            ctx.auth = AuthInfo(user_id=user, roles=["clerk"])
        await next()

    @server.pipeline.service.middleware()
    async def clerks(ctx: Context, next: Next) -> None:
        if not ctx.has_role("clerk") or ctx.has_role("admin"):
            ctx.abort(403, "FORBIDDEN", "clerks only")
        await next()

    async with client(server, database=sqlite_url) as http:
        error_of(await http.get("/api/orders"), 403, "FORBIDDEN")
        assert (await http.get("/api/orders", headers={"x-user": "ada"})).status_code == 200


async def test_the_query_can_be_narrowed_by_middleware(database_url: str) -> None:
    server = shop()

    @server.pipeline.service.middleware(operations=["list"])
    async def mine(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("owner", "ada")
        ctx.query.add_sort("total", "desc")
        await next()

    async with client(server, database=database_url) as http:
        for owner, amount in [("ada", "1"), ("bob", "2"), ("ada", "3")]:
            await server.db(Order).create(owner=owner, total=Decimal(amount))
        listed = (await http.get("/api/orders")).json()
        assert [row["orderTotal"] for row in listed["data"]] == ["3", "1"]
        assert listed["meta"]["total"] == 2


@pytest.mark.parametrize(("name", "direction"), [("nothing", "asc"), ("total", "asc; DROP TABLE orders")])
async def test_a_query_built_wrongly_by_code_fails_closed(sqlite_url: str, name: str, direction: str) -> None:
    server = shop()

    @server.pipeline.service.middleware(operations=["list"])
    async def mine(ctx: Context, next: Next) -> None:
        ctx.query.add_sort(name, direction)
        await next()

    async with client(server, database=sqlite_url) as http:
        response = await http.get("/api/orders")
        assert response.status_code >= 400
        assert "data" not in response.json()


async def test_background_work_goes_on_after_the_answer_and_may_fail(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = shop()
    release, done = asyncio.Event(), asyncio.Event()

    async def later() -> None:
        await release.wait()
        done.set()

    async def broken() -> None:
        raise RuntimeError("lost in the background")

    @server.pipeline.service.middleware()
    async def start(ctx: Context, next: Next) -> None:
        ctx.background(later)
        ctx.background(broken())
        await next()

    async with client(server, database=sqlite_url) as http:
        assert (await http.get("/api/orders")).status_code == 200
        assert not done.is_set()
        release.set()
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        assert (await http.get("/api/orders")).status_code == 200
    failures = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(failures) == 2
    assert all(r.exc_info and "lost in the background" in str(r.exc_info[1]) for r in failures)


async def test_after_commit_runs_when_the_request_succeeds_and_only_then(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    server = shop()

    async def tell() -> None:
        log.append("told")

    def fail() -> None:
        raise RuntimeError("nobody listens")

    @server.pipeline.service.middleware(operations=["create"])
    async def announce(ctx: Context, next: Next) -> None:
        ctx.after_commit(fail)
        ctx.after_commit(tell)
        await next()
        log.append("stored")

    async with client(server, database=database_url) as http:
        await created(http, "/api/orders", orderTotal="1")
        assert log == ["stored", "told"]
        server_side = {"orderTotal": "1", "state": None}
        assert (await http.post("/api/orders", json=server_side)).status_code == 422
    assert log == ["stored", "told"]
    assert "nobody listens" in caplog.text


async def test_log_lines_of_a_request_carry_its_id(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = shop()

    @server.pipeline.service.middleware()
    async def speak(ctx: Context, next: Next) -> None:
        ctx.logger.warning("listen")
        await next()

    async with client(server, database=sqlite_url) as http:
        await http.get("/api/orders", headers={"x-request-id": "r-77"})
    [line] = [r for r in caplog.records if r.message == "listen"]
    assert line.__dict__["request_id"] == "r-77"
