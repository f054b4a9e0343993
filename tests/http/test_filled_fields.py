"""Required fields that the server fills: no client is asked for them, and none is stored empty."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, field, with_transaction
from maniflex.middleware import auth, db, service
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders


class Order(Model):
    title: str
    number: str = field(readonly=True, unique=True)
    secret: str = field(hidden=True)


async def fill(ctx: Context, next: Next) -> None:
    ctx.set_field("number", f"N-{ctx.field('title')}")
    ctx.set_field("secret", "s3cret")
    await next()


def an_office(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(Order)
    server.pipeline.service.register(fill, models=[Order], operations=[Operation.CREATE])
    return server


async def test_a_service_step_fills_what_is_readonly_or_hidden(database_url: str) -> None:
    server = an_office()
    async with client(server, database=database_url) as http:
        order = await created(http, "/api/orders", title="a", number="mine", secret="mine")
        assert order["number"] == "N-a"
        [stored] = await server.db(Order).list()
        assert (stored.number, stored.secret) == ("N-a", "s3cret")
        schema = (await http.get("/api/openapi.json")).json()["components"]["schemas"]["OrderCreate"]
        assert (schema["required"], list(schema["properties"])) == (["title"], ["title"])
        assert offenders(await http.post("/api/orders", json={})) == {"title": "required"}
        patched = await http.patch(f"/api/orders/{order['id']}", json={"title": "b", "number": "mine"})
        assert data_of(patched)["number"] == "N-a"


async def test_a_field_that_nothing_fills_is_a_fault_of_the_server(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    server.register(Order)
    async with client(server, database=database_url) as http:
        with caplog.at_level(logging.ERROR):
            error = error_of(await http.post("/api/orders", json={"title": "a"}), 500, "INTERNAL")
        assert "number" not in str(error)
        assert "Order.number is filled by the server, and nothing filled it" in caplog.text
        assert await server.db(Order).count() == 0


async def test_a_replaced_validate_step_leaves_the_fault_with_the_server(sqlite_url: str) -> None:
    server = Server()
    server.register(Order)

    @server.pipeline.validate.middleware(models=[Order], at="replace")
    async def trust(ctx: Context, next: Next) -> None:
        await next()

    async with client(server, database=sqlite_url) as http:
        error_of(await http.post("/api/orders", json={"title": "a"}), 500, "INTERNAL")


async def test_code_gives_every_required_field(sqlite_url: str) -> None:
    server = an_office()
    async with client(server, database=sqlite_url):
        with pytest.raises(Exception, match="number"):
            await server.db(Order).create(title="a", secret="s")
        assert (await server.db(Order).create(title="a", number="1", secret="s")).number == "1"


async def test_an_action_fills_the_record_of_its_request_type(sqlite_url: str) -> None:
    server = an_office()

    @server.action("POST", "/place", request=Order)
    async def place(ctx: Context) -> Any:
        assert ctx.body.number is None
        ctx.body.number, ctx.body.secret = "7", "s"
        return await ctx.db(Order).create(ctx.body)

    async with client(server, database=sqlite_url) as http:
        order = data_of(await http.post("/api/place", json={"title": "a", "number": "mine"}))
        assert order["number"] == "7"


class Post(Model):
    title: str
    slug: str = field(unique=True)
    shout: str
    tone: str
    seen_at: datetime
    owner_id: str
    tenant_id: str


def a_blog() -> Server:
    server = Server()
    server.register(Post)

    async def someone(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="u1", tenant_id="t1")
        await next()

    server.pipeline.auth.register(someone)
    server.pipeline.db.register(db.tenancy())
    server.pipeline.service.register(service.owner_scope("owner_id"))
    server.pipeline.service.register(service.slugify_field("title", "slug", unique=True))
    server.pipeline.service.register(service.set_field("shout", lambda ctx: ctx.field("title").upper()))
    server.pipeline.service.register(service.copy_field("title", "tone"))
    server.pipeline.service.register(service.timestamp("seen_at"))
    return server


async def test_no_client_is_asked_for_what_entries_fill(database_url: str) -> None:
    server = a_blog()
    async with client(server, database=database_url) as http:
        post = await created(http, "/api/posts", title="It works")
        names = ("slug", "shout", "tone", "owner_id", "tenant_id")
        assert [post[name] for name in names] == ["it-works", "IT WORKS", "It works", "u1", "t1"]
        schema = (await http.get("/api/openapi.json")).json()["components"]["schemas"]["PostCreate"]
        assert schema["required"] == ["title"]
        own = await created(http, "/api/posts", title="Second", slug="own", tone="calm")
        assert (own["slug"], own["tone"]) == ("own", "calm")
        refused = await http.post("/api/posts", json={"title": "x", "slug": None})
        assert offenders(refused) == {"slug": "not_null"}


async def test_a_client_is_asked_for_what_an_entry_skips(database_url: str) -> None:
    class Note(Model):
        text: str
        tone: str

    server = Server()
    server.register(Note)
    server.pipeline.service.register(service.set_field("tone", lambda ctx: service.SKIP))
    async with client(server, database=database_url) as http:
        assert offenders(await http.post("/api/notes", json={"text": "x"})) == {"tone": "required"}
        await created(http, "/api/notes", text="x", tone="calm")


async def test_an_entry_for_updates_alone_fills_no_new_record(sqlite_url: str) -> None:
    class Note(Model):
        text: str
        tone: str

    server = Server()
    server.register(Note)
    server.pipeline.service.register(service.set_field("tone", "loud"), operations=[Operation.UPDATE])
    async with client(server, database=sqlite_url) as http:
        assert offenders(await http.post("/api/notes", json={"text": "x"})) == {"tone": "required"}
        schema = (await http.get("/api/openapi.json")).json()["components"]["schemas"]["NoteCreate"]
        assert schema["required"] == ["text", "tone"]


async def test_a_caller_whom_the_tenant_rule_lets_pass_is_asked_for_the_tenant(sqlite_url: str) -> None:
    class Note(Model):
        text: str
        tenant_id: str

    server = Server()
    server.register(Note)
    server.pipeline.auth.register(auth.api_keys(keys={"k": AuthInfo(user_id="a", roles=["boss"])}))
    server.pipeline.db.register(db.tenancy(unless_role="boss"))
    server.pipeline.service.register(with_transaction())
    async with client(server, database=sqlite_url, headers={"X-API-Key": "k"}) as http:
        assert offenders(await http.post("/api/notes", json={"text": "x"})) == {"tenant_id": "required"}
