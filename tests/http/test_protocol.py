"""Methods, paths and headers: what every request gets, whatever it asks for."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.responses import PlainTextResponse

from maniflex import Context, DeclarationError, Model, ModelOptions, Next, Response, Server
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving


class Page(Model):
    title: str


class Category(Model):
    title: str


async def test_the_walk_through_one_record(database_url: str) -> None:
    async with serving(database_url, Page) as http:
        made = await http.post("/api/pages", json={"title": "a"})
        record = data_of(made, 201)
        assert made.headers["content-type"] == "application/json"
        one = f"/api/pages/{record['id']}"
        assert (await http.get(one)).json() == {"data": record}
        assert data_of(await http.patch(one, json={"title": "b"}))["title"] == "b"
        gone = await http.delete(one)
        assert (gone.status_code, gone.content) == (204, b"")
        assert "content-type" not in gone.headers
        for request in (http.get(one), http.patch(one, json={"title": "c"}), http.delete(one)):
            error_of(await request, 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/api/pages", "GET, HEAD, OPTIONS, POST"),
        ("DELETE", "/api/pages", "GET, HEAD, OPTIONS, POST"),
        ("PATCH", "/api/pages", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/api/pages/1", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("PUT", "/api/pages/1", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("BREW", "/api/pages", "GET, HEAD, OPTIONS, POST"),
        ("get", "/api/pages/1", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_and_says_which_are_right(
    sqlite_url: str, method: str, path: str, allow: str
) -> None:
    async with serving(sqlite_url, Page) as http:
        request = http.build_request("GET", path)
        request.method = method
        response = await http.send(request)
        error_of(response, 405, "METHOD_NOT_ALLOWED")
        assert response.headers["allow"] == allow


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/",
        "/api/nothing",
        "/api/nothing/1",
        "/pages",
        "/api/pages/",
        "/api/pages/1/",
        "/api/pages/1/more",
        "/api//pages",
        "//api/pages",
        "/API/pages",
        "/api/Pages",
        "/api/page",
        "/api/pages/%00",
        "/api/pages/a%2Fb%2Fc",
        "/health/",
    ],
)
async def test_a_path_that_is_not_there_is_404(database_url: str, path: str) -> None:
    async with serving(database_url, Page) as http:
        response = await http.send(http.build_request("GET", f"http://test{path}"))
        error_of(response, 404, "NOT_FOUND")


@pytest.mark.parametrize("record_id", ["x", "0", "' OR '1'='1", "é", "😀", "a" * 5000, "%", "..;", "null"])
async def test_an_id_of_no_record_is_404(database_url: str, record_id: str) -> None:
    async with serving(database_url, Page) as http:
        await created(http, "/api/pages", title="a")
        path = f"/api/pages/{quote(record_id, safe='')}"
        error_of(await http.get(path), 404, "NOT_FOUND")
        error_of(await http.patch(path, json={"title": "b"}), 404, "NOT_FOUND")
        error_of(await http.delete(path), 404, "NOT_FOUND")
        assert data_of(await http.get("/api/pages"))[0]["title"] == "a"


async def test_head_mirrors_get_without_the_body(database_url: str) -> None:
    async with serving(database_url, Page, ModelOptions(optimistic_lock=True)) as http:
        record = await created(http, "/api/pages", title="a")
        for path in (f"/api/pages/{record['id']}", "/api/pages", "/api/pages?limit=1", "/health", "/api/no"):
            got, head = await http.get(path), await http.head(path)
            assert head.status_code == got.status_code
            assert head.content == b""
            assert headers_of(head) == headers_of(got)
        assert (await http.head("/api/pages/missing")).status_code == 404
        assert (await http.head("/api/pages?page=0")).status_code == 400


def headers_of(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name != "x-request-id"}


async def test_an_answer_is_not_stored_by_caches_unless_the_application_says_so(sqlite_url: str) -> None:
    server = Server()
    server.register(Page, ModelOptions(optimistic_lock=True, export=True))

    @server.action("GET", "/cached")
    async def cached(ctx: Context) -> Response:
        return Response(200, {}, headers={"Cache-Control": "public, max-age=60"})

    @server.action("GET", "/starlette")
    async def starlette(ctx: Context) -> Any:
        return PlainTextResponse("a")

    @server.action("GET", "/starlette/cached")
    async def starlette_cached(ctx: Context) -> Any:
        return PlainTextResponse("a", headers={"cache-control": "no-cache"})

    @server.pipeline.response.middleware(operations=["create"])
    async def revalidate(ctx: Context, next: Next) -> None:
        await next()
        assert ctx.response is not None
        ctx.response.set_header("Cache-Control", "private, no-cache")

    async with client(server, database=sqlite_url) as http:
        made = await http.post("/api/pages", json={"title": "a"})
        assert made.headers.get_list("cache-control") == ["private, no-cache"]
        record = data_of(made, 201)
        for path, caching in (
            (f"/api/pages/{record['id']}", "no-store"),
            ("/api/pages/none", "no-store"),
            ("/api/nothing", "no-store"),
            ("/api/pages/export", "no-store"),
            ("/health", "no-store"),
            ("/api/starlette", "no-store"),
            ("/api/starlette/cached", "no-cache"),
            ("/api/cached", "public, max-age=60"),
            ("/api/pages", "no-store"),
            ("/api/openapi.json", "no-cache"),
        ):
            assert (await http.get(path)).headers.get_list("cache-control") == [caching], path
        assert (await http.delete(f"/api/pages/{record['id']}")).headers["cache-control"] == "no-store"


async def test_options_lists_what_can_be_done(sqlite_url: str) -> None:
    async with serving(sqlite_url, Page) as http:
        for path, allow in (
            ("/api/pages", "GET, HEAD, OPTIONS, POST"),
            ("/api/pages/any", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ):
            response = await http.options(path)
            assert (response.status_code, response.content) == (204, b"")
            assert response.headers["allow"] == allow


ECHOED = ["a", "0190b3a8-7c2e-7d11-8f3a-0123456789ab", "x" * 128, "!#$~"]
REPLACED: list[bytes] = [b"", b"two words", b"x" * 129, b"tab\there", b"\xe9", b"nul\x00"]


async def test_a_request_id_is_echoed_on_every_answer(sqlite_url: str) -> None:
    async with serving(sqlite_url, Page) as http:
        for sent in ECHOED:
            for path in ("/api/pages", "/api/nothing", "/api/pages/1", "/health"):
                response = await http.get(path, headers={"X-Request-Id": sent})
                assert response.headers["x-request-id"] == sent
            assert (await http.put("/api/pages", headers={"X-Request-Id": sent})).headers[
                "x-request-id"
            ] == sent


async def test_a_missing_or_malformed_request_id_is_replaced_by_a_fresh_one(sqlite_url: str) -> None:
    async with serving(sqlite_url, Page) as http:
        made = [(await http.get("/api/pages")).headers["x-request-id"] for _ in range(3)]
        for sent in REPLACED:
            response = await http.get("/api/pages", headers=[(b"X-Request-Id", sent)])
            made.append(response.headers["x-request-id"])
        assert all(re.fullmatch(r"[\x21-\x7e]{8,128}", text) for text in made)
        assert len(set(made)) == len(made)
        assert not {text.encode() for text in made} & set(REPLACED)


async def test_the_context_knows_the_request_the_trace_and_the_service(sqlite_url: str) -> None:
    seen: list[tuple[str, str, str, str]] = []

    async def note(ctx: Context, next: Next) -> None:
        seen.append((ctx.request_id, ctx.trace_id, ctx.traceparent, ctx.service_name))
        await next()

    server = Server(service_name="pages-eu")
    server.register(Page)
    server.pipeline.auth.register(note)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with client(server, database=sqlite_url) as http:
        response = await http.get("/api/pages", headers={"X-Request-Id": "r1", "traceparent": trace})
        assert response.headers["x-service-name"] == "pages-eu"
        await http.get("/api/pages", headers={"X-Request-Id": "r2", "traceparent": "00-abc-def-01"})
        assert (await http.get("/nowhere")).headers["x-service-name"] == "pages-eu"
    assert seen == [("r1", trace[3:35], trace, "pages-eu"), ("r2", "", "", "pages-eu")]


async def test_without_a_service_name_there_is_no_such_header(sqlite_url: str) -> None:
    async with serving(sqlite_url, Page) as http:
        assert "x-service-name" not in (await http.get("/api/pages")).headers


@pytest.mark.parametrize(
    ("given", "prefix"),
    [("", ""), ("/", ""), ("/api/v2", "/api/v2"), ("v1", "/v1"), ("/a/b/c/", "/a/b/c")],
)
async def test_every_spelling_of_the_prefix_mounts_the_same_routes(
    sqlite_url: str, given: str, prefix: str
) -> None:
    server = Server(path_prefix=given)
    server.register(Page, Category)

    @server.action("GET", "/ping")
    async def ping(ctx: Context) -> dict[str, Any]:
        return {"pong": True}

    async with client(server, database=sqlite_url) as http:
        record = await created(http, f"{prefix}/pages", title="a")
        assert data_of(await http.get(f"{prefix}/pages/{record['id']}")) == record
        assert data_of(await http.get(f"{prefix}/categories")) == []
        assert data_of(await http.get(f"{prefix}/ping")) == {"pong": True}
        assert (await http.get("/health")).status_code == 200
        if prefix:
            assert (await http.get("/pages")).status_code == 404


async def test_a_model_that_would_hide_a_probe_stops_the_start() -> None:
    class Health(Model, table="health"):
        title: str

    server = Server(path_prefix="")
    server.register(Health)
    with pytest.raises(DeclarationError, match="/health"):
        server.seal()


async def test_a_headless_model_has_no_routes(sqlite_url: str) -> None:
    class Hidden(Model, headless=True, table="hidden_things"):
        title: str

    server = Server()
    server.register(Page, Hidden)
    async with client(server, database=sqlite_url) as http:
        await server.db(Hidden).create(title="a")
        assert (await http.get("/api/hidden_things")).status_code == 404
        assert await server.db(Hidden).count() == 1


async def test_a_model_may_live_in_another_database(sqlite_url: str, database_url: str) -> None:
    class Faraway(Model, database="sqlite:///:memory:"):
        title: str

    server = Server()
    server.register(Page, Faraway)
    async with client(server, database=database_url) as http:
        await created(http, "/api/pages", title="near")
        record = await created(http, "/api/faraways", title="far")
        assert data_of(await http.get(f"/api/faraways/{record['id']}"))["title"] == "far"
        tables = {row["title"] for row in await server.raw_query("SELECT title FROM pages")}
        assert tables == {"near"}
