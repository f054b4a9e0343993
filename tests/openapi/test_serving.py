"""`/openapi.json` and `/docs` over HTTP: what they answer, who may see them, what middleware can change."""

from __future__ import annotations

import asyncio
import gc
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import maniflex.openapi
from maniflex import Context, DeclarationError, Model, Next, Response, Server
from maniflex.middleware.openapi import (
    add_extension,
    add_security_scheme,
    add_server,
    set_description,
    set_title,
)
from maniflex.pipeline.context import OpenAPIContext
from maniflex.testing import client
from tests.kit.notes import note_server
from tests.kit.waiting import eventually

ASSETS = Path(maniflex.openapi.__file__).parent / "reference"


async def refuse(ctx: Context, next: Next) -> None:
    if ctx.header("authorization") != "Bearer inside":
        ctx.abort(401, "UNAUTHORIZED", "who is asking?")
    await next()


async def test_the_description_is_served_below_the_prefix_and_the_page_at_the_root(database_url: str) -> None:
    async with client(note_server(path_prefix="/v1"), database=database_url) as http:
        document = await http.get("/v1/openapi.json")
        page = await http.get("/docs")
        head = await http.head("/docs")

    assert document.headers["content-type"] == "application/json"
    assert "/v1/notes" in document.json()["paths"]
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'content="v1/openapi.json"' in page.text
    assert (head.status_code, head.content) == (200, b"")


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with client(note_server()) as http:
        page = await http.get("/docs")
        needed = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
        needed += [f"docs/{path.name}" for path in ASSETS.glob("*.js") if f"docs/{path.name}" not in needed]
        parts = [await http.get(f"/{name}") for name in needed]

    assert len(needed) == 5
    assert [part.status_code for part in parts] == [200] * 5
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    for text in (page.text, *(part.text for part in parts)):
        assert "://" not in text
        assert not re.search(r"\son\w+=|<style|style=|innerHTML|eval\(", text)
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 60_000


@pytest.mark.parametrize(
    ("settings", "statuses"),
    [
        ({"docs_enabled": False}, [200, 404, 404]),
        ({"openapi_enabled": False}, [404, 404, 404]),
        ({}, [200, 200, 200]),
    ],
)
async def test_both_can_be_switched_off(settings: dict[str, bool], statuses: list[int]) -> None:
    async with client(note_server(**settings)) as http:
        paths = ("/api/openapi.json", "/docs", "/docs/reference.js")
        assert [(await http.get(path)).status_code for path in paths] == statuses


async def test_one_guard_covers_the_description_and_the_page_and_nothing_else() -> None:
    server = note_server()
    server.pipeline.openapi.auth.register(refuse)

    async with client(server) as http:
        refused = [await http.get(path) for path in ("/api/openapi.json", "/docs")]
        refused.append(await http.head("/api/openapi.json"))
        shown = await http.get("/api/openapi.json", headers={"authorization": "Bearer inside"})
        listed = await http.get("/api/notes")

    assert [answer.status_code for answer in refused] == [401, 401, 401]
    assert "notes" not in refused[0].text + refused[1].text
    assert (shown.status_code, listed.status_code) == (200, 200)
    assert {"401", "403"} <= shown.json()["paths"]["/api/openapi.json"]["get"]["responses"].keys()


async def test_helpers_shape_the_document_in_the_order_they_are_registered() -> None:
    server = note_server()
    bearer = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    for change in (
        set_title("Notes"),
        set_description("Short texts."),
        add_server("https://api.example.com", "Production"),
        add_server("https://staging.example.com"),
        add_security_scheme("bearerAuth", bearer),
        add_extension(lambda spec: spec["info"].update(license={"name": "MIT"})),
    ):
        server.pipeline.openapi.generate.register(change, at="after")

    document = await server.openapi()

    assert document["info"] == {
        "title": "Notes",
        "version": "1.0.0",
        "description": "Short texts.",
        "license": {"name": "MIT"},
    }
    assert [s["url"] for s in document["servers"]] == [
        "https://api.example.com",
        "https://staging.example.com",
    ]
    assert document["components"]["securitySchemes"] == {"bearerAuth": bearer}
    assert document["security"] == [{"bearerAuth": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document["paths"]["/api/notes"]["get"]


async def test_a_helper_before_the_step_does_the_same() -> None:
    server = note_server()
    server.pipeline.openapi.generate.register(set_title("Notes"))

    async with client(server) as http:
        assert (await http.get("/api/openapi.json")).json()["info"]["title"] == "Notes"


async def test_a_change_for_one_caller_is_not_seen_by_the_next() -> None:
    server = note_server()

    @server.pipeline.openapi.generate.middleware(at="after")
    async def hide(ctx: OpenAPIContext, next: Next) -> None:
        if ctx.header("x-role") != "inside":
            ctx.spec["paths"] = {p: m for p, m in ctx.spec["paths"].items() if "notes" not in p}
        await next()

    async with client(server) as http:
        outside = await http.get("/api/openapi.json")
        inside = await http.get("/api/openapi.json", headers={"x-role": "inside"})

    assert "/api/notes" not in outside.json()["paths"]
    assert "/api/notes" in inside.json()["paths"]


async def test_steps_can_be_replaced() -> None:
    server = note_server()

    @server.pipeline.openapi.generate.middleware(at="replace")
    async def own(ctx: OpenAPIContext, next: Next) -> None:
        ctx.spec = {"openapi": "3.1.0", "info": {"title": "Own", "version": "1"}, "paths": {}}
        await next()

    @server.pipeline.openapi.response.middleware()
    async def wrap(ctx: OpenAPIContext, next: Next) -> None:
        await next()
        assert isinstance(ctx.response, Response)
        ctx.response.set_header("X-Own", "yes")

    async with client(server) as http:
        answer = await http.get("/api/openapi.json")

    assert answer.json()["info"]["title"] == "Own"
    assert answer.headers["x-own"] == "yes"


async def test_a_known_version_is_not_sent_again() -> None:
    async with client(note_server()) as http:
        first = await http.get("/api/openapi.json")
        again = await http.get("/api/openapi.json", headers={"if-none-match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")


async def test_a_version_is_known_by_its_tag_in_any_form_the_header_has() -> None:
    async with client(note_server()) as http:
        tag = (await http.get("/api/openapi.json")).headers["etag"]
        known = {
            wanted: (await http.get("/api/openapi.json", headers={"if-none-match": wanted})).status_code
            for wanted in ("*", " * ", f"W/{tag}", f'"other", {tag}', f'W/"other",W/{tag}')
        }
        unknown = {
            wanted: (await http.get("/api/openapi.json", headers={"if-none-match": wanted})).status_code
            for wanted in ('"other"', tag.strip('"'), f'"x{tag[1:]}', '"*"', "")
        }

    assert set(known.values()) == {304}, known
    assert set(unknown.values()) == {200}, unknown


async def test_the_compressed_form_has_a_tag_of_its_own() -> None:
    plain, gzip = {"accept-encoding": "identity"}, {"accept-encoding": "gzip"}
    async with client(note_server()) as http:
        whole = await http.get("/api/openapi.json", headers=plain)
        small = await http.get("/api/openapi.json", headers=gzip)
        tag = {"if-none-match": small.headers["etag"]}
        again = await http.get("/api/openapi.json", headers={**gzip, **tag})
        other = await http.get("/api/openapi.json", headers={**plain, **tag})

    assert whole.headers["etag"] != small.headers["etag"]
    assert (again.status_code, again.headers["etag"]) == (304, small.headers["etag"])
    assert again.headers["vary"] == "accept-encoding"
    assert (other.status_code, other.headers["etag"]) == (200, whole.headers["etag"])


async def test_mounted_under_another_application_it_says_where_the_paths_begin() -> None:
    server = note_server()
    app = Starlette(routes=[Mount("/inner", server)])

    async with client(server):
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
            document = (await http.get("/inner/api/openapi.json")).json()
            script = await http.get("/inner/docs/reference.js")

    assert document["servers"] == [{"url": "/inner"}]
    assert script.status_code == 200


def test_its_steps_are_sealed_with_the_server() -> None:
    server = note_server(database=":memory:")
    server.seal()

    with pytest.raises(DeclarationError, match=r"openapi\.generate: the server is sealed"):
        server.pipeline.openapi.generate.register(set_title("too late"))


async def test_the_document_comes_compressed_to_whoever_takes_it() -> None:
    server = note_server()
    async with client(server) as http:
        plain = await http.get("/api/openapi.json", headers={"accept-encoding": "identity"})
        small = await http.get("/api/openapi.json", headers={"accept-encoding": "gzip"})
        refused = await http.get("/api/openapi.json", headers={"accept-encoding": "gzip;q=0"})

    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < len(plain.content) / 3
    assert small.json() == plain.json() == refused.json()
    assert {"content-encoding" in answer.headers for answer in (plain, refused)} == {False}


async def test_others_are_answered_while_the_document_of_many_models_is_made() -> None:
    server = Server()
    made = [type(f"Thing{i}", (Model,), {"__annotations__": {"name": str}}) for i in range(40)]
    server.register(*made)
    async with client(server) as http:
        document = asyncio.create_task(http.get("/api/openapi.json"))
        answered = 0
        while not document.done():
            assert (await http.get("/live")).status_code == 200
            answered += 1
            await asyncio.sleep(0)  # a probe in-process waits for nothing, so the loop must get its turn

    assert (await document).status_code == 200
    assert answered > 1


async def test_a_server_that_listens_has_made_its_description_before_anybody_asks(sqlite_url: str) -> None:
    server = note_server(database=sqlite_url)
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    answers: list[str] = []

    async def send(message: Any) -> None:
        answers.append(message["type"])

    messages.put_nowait({"type": "lifespan.startup"})
    living = asyncio.create_task(server({"type": "lifespan"}, messages.get, send))
    description = server._seal().description
    await eventually(lambda: description._document is not None, "the description")
    assert gc.isenabled()
    messages.put_nowait({"type": "lifespan.shutdown"})
    await living
    assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
