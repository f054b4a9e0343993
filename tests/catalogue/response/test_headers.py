"""Headers on the answers of some routes, or of all (R7, R8)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Server
from maniflex.middleware import response
from maniflex.testing import client
from tests.kit.http import created, error_of
from tests.kit.notes import Note


class Page(Model):
    text: str


def a_server() -> Server:
    server = Server()
    server.register(Note, Page)

    @server.pipeline.auth.middleware()
    async def sign_in(ctx: Context, next: Next) -> None:
        if ctx.header("x-user") == "nobody":
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        await next()

    return server


async def test_a_header_is_on_every_answer_of_its_routes(database_url: str) -> None:
    server = a_server()
    server.pipeline.response.register(response.add_header("X-Kind", "note"), models=[Note])
    server.pipeline.response.register(
        response.add_header("X-Reader", lambda ctx: ctx.header("x-user")), operations=Operation.READ
    )
    async with client(server, database=database_url) as http:
        note = await created(http, "/api/notes", text="hello")
        refused = await http.get("/api/notes", headers={"x-user": "nobody"})
        missing = await http.get("/api/notes/17", headers={"x-user": "ada"})
        read = await http.get(f"/api/notes/{note['id']}")
        other = await http.get("/api/pages")
        nowhere = await http.get("/nowhere")

    assert (refused.status_code, refused.headers["x-kind"]) == (401, "note")
    assert (missing.status_code, missing.headers["x-kind"], missing.headers["x-reader"]) == (
        404,
        "note",
        "ada",
    )
    assert "x-reader" not in read.headers
    assert "x-kind" not in other.headers
    assert "x-kind" not in nowhere.headers


async def test_an_async_function_is_awaited_and_a_failing_one_is_a_500(sqlite_url: str) -> None:
    async def later(ctx: Context) -> str:
        return "later"

    def broken(ctx: Context) -> str:
        raise KeyError("s3cret")

    server = a_server()
    server.pipeline.response.register(response.add_header("X-Later", later), models=[Note])
    server.pipeline.response.register(response.add_header("X-Broken", broken), models=[Page])
    async with client(server, database=sqlite_url) as http:
        assert (await http.get("/api/notes")).headers["x-later"] == "later"
        answer = await http.get("/api/pages")

    error_of(answer, 500, "INTERNAL")
    assert "s3cret" not in answer.text


async def test_as_a_layer_and_in_an_action(sqlite_url: str) -> None:
    server = a_server()
    server.use(response.add_header("X-Region", "eu"))
    server.use(response.add_header("Cache-Control", "private"))

    @server.action("GET", "/ping", middleware=[response.add_header("X-Action", "ping")])
    async def ping(ctx: Context) -> str:
        ctx.abort(409, "NOT_NOW", "later")

    async with client(server, database=sqlite_url) as http:
        nowhere = await http.get("/nowhere")
        action = await http.get("/api/ping")

    assert nowhere.headers["x-region"] == "eu"
    assert nowhere.headers.get_list("cache-control") == ["private"]
    assert (action.status_code, action.headers["x-action"], action.headers["x-region"]) == (409, "ping", "eu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-Length", "1"),
        ("X-Request-Id", "1"),
        ("X Y", "1"),
        ("X-A", "1\r\nX-B: 2"),
        ("X-A", "snow ☃"),
        ("X-A", None),
        ("", "1"),
    ],
)
def test_a_header_that_cannot_be_sent_stops_the_start(name: str, value: Any) -> None:
    for register in (Server.use, lambda server, entry: server.pipeline.response.register(entry)):
        server = a_server()
        register(server, response.add_header(name, value))
        with pytest.raises(DeclarationError, match=r"response\.add_header"):
            server.seal()


def test_a_function_as_a_layer_stops_the_start() -> None:
    server = a_server()
    server.use(response.add_header("X-A", lambda ctx: "a"))
    with pytest.raises(DeclarationError, match="a function is asked"):
        server.seal()


async def test_browsers_are_told_and_the_documentation_keeps_its_policy(database_url: str) -> None:
    """R8."""
    server = a_server()
    server.use(response.security_headers(hsts=timedelta(days=1), csp="default-src 'none'"))
    async with client(server, database=database_url) as http:
        answer = await http.get("/nowhere")
        docs = await http.get("/docs")

    told = answer.headers
    assert told["x-content-type-options"] == "nosniff"
    assert told["x-frame-options"] == "DENY"
    assert told["referrer-policy"] == "no-referrer"
    assert told["content-security-policy"] == "default-src 'none'"
    assert told["strict-transport-security"] == "max-age=86400"
    assert "'self'" in docs.headers["content-security-policy"]
    assert docs.headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize(
    "entry",
    [
        response.security_headers(frame="ALLOW"),
        response.security_headers(hsts=-1),
        response.security_headers(csp="a\nb"),
        response.security_headers(referrer=""),
    ],
)
def test_wrong_security_headers_stop_the_start(entry: Any) -> None:
    server = a_server()
    server.use(entry)
    with pytest.raises(DeclarationError, match=r"response\.security_headers"):
        server.seal()
