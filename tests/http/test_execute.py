"""`server.execute`: the whole pipeline, without a wire."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Next, Operation, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of, total


class Post(Model):
    title: str = field(filterable=True, sortable=True, min_length=2)
    owner: str = field(default="", readonly=True)
    secret: str = field(default="s3cret", hidden=True)


def blog() -> Server:
    server = Server()
    server.register(Post)
    return server


async def test_every_operation_answers_as_it_would_over_http(database_url: str) -> None:
    server = blog()
    async with client(server, database=database_url) as http:
        made = await server.execute(Operation.CREATE, Post, body={"title": "one", "id": "x", "secret": "y"})
        assert made.status == 201
        record_id = made.data["id"]
        assert data_of(await http.get(f"/api/posts/{record_id}")) == made.data
        assert (await server.execute("read", "Post", record_id)).data == made.data
        changed = await server.execute("update", Post, record_id, body={"title": "two"})
        assert (changed.status, changed.data["title"]) == (200, "two")
        await created(http, "/api/posts", title="three")
        for query in ("sort=title:desc&limit=1", {"sort": "title:desc", "limit": 1}):
            page = await server.execute("list", Post, query=query)
            assert [row["title"] for row in page.data] == ["two"]
            assert page.meta["total"] == 2
        assert (await server.execute("delete", Post, record_id)).status == 204
        assert (await server.execute("read", Post, record_id)).status == 404
        assert (await server.execute("head", Post)).status == 200


async def test_refusals_come_back_as_answers(database_url: str) -> None:
    server = blog()
    async with client(server, database=database_url) as http:
        short = await server.execute("create", Post, body={"title": "x"})
        assert short.status == 422
        assert short.error is not None
        assert short.error["code"] == "VALIDATION_FAILED"
        assert (await server.execute("create", Post)).status == 400
        assert (await server.execute("list", Post, query="page=0")).status == 400
        assert await total(http, "/api/posts") == 0


async def test_middleware_runs_and_nobody_is_somebody_by_accident(database_url: str) -> None:
    seen: list[Any] = []
    server = blog()

    @server.pipeline.auth.middleware()
    async def identified(ctx: Context, next: Next) -> None:
        seen.append(ctx.header("x-own"))
        if ctx.auth is None:
            ctx.abort(401, "UNAUTHORIZED", "who are you?")
        await next()

    @server.pipeline.service.middleware(operations=["create"])
    async def own(ctx: Context, next: Next) -> None:
        assert ctx.auth is not None
        ctx.set_field("owner", ctx.auth.user_id)
        await next()

    async with client(server, database=database_url):
        body = {"title": "one"}
        assert (await server.execute("create", Post, body=body)).status == 401
        made = await server.execute(
            "create", Post, body=body, auth=AuthInfo(user_id="ada"), headers={"X-Own": "1"}
        )
        assert made.data["owner"] == "ada"
    assert seen == [None, "1"]


async def test_it_joins_the_open_transaction(database_url: str) -> None:
    server = blog()
    async with client(server, database=database_url) as http:

        async def create_and_fail() -> None:
            async with server.transaction():
                await server.execute("create", Post, body={"title": "one"})
                assert (await server.execute("list", Post)).meta["total"] == 1
                raise KeyError("changed my mind")

        with pytest.raises(KeyError):
            await create_and_fail()
        assert await total(http, "/api/posts") == 0


async def test_what_is_not_there_is_said_to_the_programmer(sqlite_url: str) -> None:
    class Settings(Model, singleton=True, table="settings"):
        dark: bool = False

    server = blog()
    server.register(Settings)
    async with client(server, database=sqlite_url):
        with pytest.raises(DeclarationError, match="Psot"):
            await server.execute("list", "Psot")
        with pytest.raises(DeclarationError, match="create"):
            await server.execute("create", Settings, body={})
        assert (await server.execute("read", Settings)).data["dark"] is False
        changed = await server.execute("update", Settings, body={"dark": True})
        assert changed.data["dark"] is True
