"""Headers and cookies that code adds reach whatever is answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from maniflex import Context, Model, Next, Response, Server, field
from maniflex.testing import client


class Thing(Model):
    name: str = field(filterable=True)


async def pieces() -> AsyncGenerator[bytes, None]:
    yield b"one"
    yield b"two"


def app() -> Server:
    server = Server()
    server.register(Thing)

    @server.pipeline.auth.middleware()
    async def add(ctx: Context, next: Next) -> None:
        ctx.add_header("X-Part", "one")
        ctx.add_header("x-part", "two")
        ctx.set_cookie("a", "1")
        ctx.set_cookie("b", "2", max_age=60, path="/x", secure=False, http_only=False, same_site="strict")
        await next()

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> Any:
        return Response(200, stream=pieces())

    @server.action("GET", "/starlette")
    async def starlette(ctx: Context) -> Any:
        return PlainTextResponse("x")

    @server.action("GET", "/panic")
    async def panic(ctx: Context) -> Any:
        raise KeyError("x")

    @server.action("GET", "/unwritable")
    async def unwritable(ctx: Context) -> Any:
        return {"x": object()}

    @server.action("GET", "/cached")
    async def cached(ctx: Context) -> Any:
        ctx.add_header("Cache-Control", "private, max-age=5")
        return 1

    return server


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/things", 200),
        ("/things/x", 404),
        ("/things?filter=x", 400),
        ("/stream", 200),
        ("/starlette", 200),
        ("/panic", 500),
        ("/unwritable", 500),
    ],
)
async def test_added_headers_reach_every_answer(path: str, status: int, sqlite_url: str) -> None:
    async with client(app(), database=sqlite_url) as http:
        answer = await http.get(f"/api{path}")

    assert answer.status_code == status
    assert answer.headers.get_list("x-part") == ["one", "two"]
    assert answer.headers.get_list("set-cookie") == [
        "a=1; Path=/; Secure; HttpOnly; SameSite=Lax",
        "b=2; Path=/x; Max-Age=60; SameSite=Strict",
    ]
    assert answer.headers.get_list("cache-control") == ["no-store"]


async def test_a_cache_header_replaces_the_usual_one(sqlite_url: str) -> None:
    async with client(app(), database=sqlite_url) as http:
        answer = await http.get("/api/cached")

    assert answer.headers.get_list("cache-control") == ["private, max-age=5"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X A", "x"),
        ("", "x"),
        ("Content-Length", "1"),
        ("X-Request-Id", "1"),
        ("X-A", "a\r\nb"),
        ("X-A", "a\x00"),
    ],
)
def test_headers_that_would_break_the_answer_are_refused(name: str, value: str) -> None:
    ctx = Context(None, {}, None, None, "")  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="header"):
        ctx.add_header(name, value)
    assert ctx.extra_headers is None


@pytest.mark.parametrize("options", [{"name": "a b"}, {"value": "a;b"}, {"value": "a b"}, {"path": "/;x"}])
def test_cookies_that_cannot_be_written_are_refused(options: dict[str, str]) -> None:
    ctx = Context(None, {}, None, None, "")  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="cookie"):
        ctx.set_cookie(**{"name": "a", "value": "b", **options})  # type: ignore[arg-type]
