"""Pages of other origins: preflights, and what they may read (R2 to R6, C53)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import Context, DeclarationError, Next, Response, Server
from maniflex.middleware import response
from maniflex.testing import client
from tests.kit.http import error_of
from tests.kit.notes import Note

APP = "https://app.example.com"


def a_server(*layers: Any, **settings: Any) -> Server:
    server = Server(max_body_size=1000, **settings)
    server.register(Note)
    for layer in layers:
        server.use(layer)

    @server.pipeline.auth.middleware()
    async def sign_in(ctx: Context, next: Next) -> None:
        if ctx.header("authorization") is None:
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        await next()

    @server.action("POST", "/fail")
    async def fail(ctx: Context) -> Any:
        raise KeyError("broken")

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> Any:
        async def pieces() -> Any:
            yield b"data"

        return Response(200, stream=pieces(), headers={"vary": "Accept"})

    return server


def preflight(origin: str = APP, method: str = "PATCH", headers: str = "") -> dict[str, str]:
    asked = {"origin": origin, "access-control-request-method": method}
    return {**asked, "access-control-request-headers": headers} if headers else asked


def allowed(answer: httpx.Response) -> str | None:
    origin: str | None = answer.headers.get("access-control-allow-origin")
    return origin


@pytest.mark.parametrize("path", ["/api/notes", "/api/notes/17", "/api/fail", "/nowhere", "/live"])
async def test_a_preflight_needs_neither_credentials_nor_a_route(path: str, database_url: str) -> None:
    """C53."""
    async with client(a_server(response.cors([APP])), database=database_url) as http:
        asked = preflight(headers="authorization, content-type, If-Match, idempotency-key")
        answer = await http.options(path, headers=asked)

    assert (answer.status_code, answer.content, allowed(answer)) == (204, b"", APP)
    assert answer.headers["access-control-max-age"] == "86400"
    assert "PATCH" in answer.headers["access-control-allow-methods"]
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (preflight("https://evil.example"), 403, "CORS_ORIGIN_DENIED"),
        (preflight("null"), 403, "CORS_ORIGIN_DENIED"),
        (preflight("http://app.example.com"), 403, "CORS_ORIGIN_DENIED"),
        (preflight("https://app.example.com.evil.example"), 403, "CORS_ORIGIN_DENIED"),
        (preflight(headers="x-secret"), 403, "CORS_HEADER_DENIED"),
        (preflight(method="TRACE"), 405, "CORS_METHOD_DENIED"),
    ],
)
async def test_what_is_not_listed_is_refused(
    asked: dict[str, str], status: int, code: str, sqlite_url: str
) -> None:
    """C53."""
    async with client(a_server(response.cors([APP])), database=sqlite_url) as http:
        answer = await http.options("/api/notes", headers=asked)

    error_of(answer, status, code)
    assert allowed(answer) is None
    assert ("allow" in answer.headers) is (status == 405)
    assert answer.headers["x-request-id"]


async def test_every_answer_can_be_read_by_a_listed_origin(tmp_path: Path, database_url: str) -> None:
    """C53: refusals, streams and files carry the headers too."""
    (tmp_path / "a.txt").write_text("a")
    async with client(a_server(response.cors([APP]), static_dir=tmp_path), database=database_url) as http:
        listed, known = {"origin": APP}, {"origin": APP, "authorization": "Bearer x"}
        answers = [
            await http.get("/api/notes", headers=known),
            await http.get("/api/notes", headers=listed),
            await http.get("/nowhere", headers=listed),
            await http.post("/api/notes", content=b"x" * 2000, headers=known),
            await http.post("/api/fail", headers=known),
            await http.get("/api/stream", headers=known),
            await http.get("/static/a.txt", headers=listed),
            await http.get("/static/b.txt", headers=listed),
            await http.get("/api/openapi.json", headers=known),
        ]

    assert [a.status_code for a in answers] == [200, 401, 404, 413, 500, 200, 200, 404, 200]
    assert {allowed(answer) for answer in answers} == {APP}
    assert all("ETag" in answer.headers["access-control-expose-headers"] for answer in answers)
    assert all("Origin" in answer.headers["vary"] for answer in answers)
    assert answers[5].headers.get_list("vary") == ["Accept, Origin"]


async def test_another_origin_is_served_and_never_repeated(sqlite_url: str) -> None:
    """C53."""
    async with client(a_server(response.cors([APP])), database=sqlite_url) as http:
        http.headers["authorization"] = "Bearer x"
        answer = await http.get("/api/notes", headers={"origin": "https://evil.example"})
        plain = await http.options("/api/notes", headers={"origin": APP})

    assert answer.status_code == 200
    assert not any(name.startswith("access-control-") for name in answer.headers)
    assert answer.headers["vary"] == "Origin"
    assert plain.headers["allow"] == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    ("origin", "is_listed"),
    [
        ("https://shop.example.org", True),
        ("https://a.b.example.org", True),
        ("https://example.org", False),
        ("http://shop.example.org", False),
        ("https://evilexample.org", False),
        ("https://evil.com/.example.org", False),
        ("https://user@x.example.org", False),
        ("null", True),
        ("http://localhost:5173", True),
        ("http://localhost:5174", False),
    ],
)
async def test_subdomains_ports_and_null(origin: str, is_listed: bool, sqlite_url: str) -> None:
    origins = ["https://*.example.org", "null", "http://LOCALHOST:5173"]
    layer = response.cors(origins, credentials=True, max_age=60, headers=["*"], expose=[])
    async with client(a_server(layer), database=sqlite_url) as http:
        answer = await http.options("/api/notes", headers=preflight(origin, headers="x-any"))

    assert (answer.status_code, allowed(answer)) == ((204, origin) if is_listed else (403, None))
    if is_listed:
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["access-control-allow-headers"] == "x-any"


async def test_all_origins_vary_by_nothing(sqlite_url: str) -> None:
    async with client(a_server(response.cors("*")), database=sqlite_url) as http:
        answer = await http.get("/live", headers={"origin": "https://any.example"})

    assert (allowed(answer), answer.headers.get("vary")) == ("*", None)


async def test_registered_on_the_response_step_it_goes_around_the_server(sqlite_url: str) -> None:
    """R2."""
    server = a_server()
    server.pipeline.response.register(response.cors([APP]))
    async with client(server, database=sqlite_url) as http:
        assert (await http.options("/api/notes", headers=preflight())).status_code == 204
        assert allowed(await http.get("/nowhere", headers={"origin": APP})) == APP


@pytest.mark.parametrize(
    "layer",
    [
        response.cors([]),
        response.cors("*", credentials=True),
        response.cors(["app.example.com"]),
        response.cors(["https://app.example.com/"]),
        response.cors(["https://*"]),
        response.cors(["https://exa*mple.com"]),
        response.cors([APP], max_age=-1),
        response.cors([APP], headers=["X Y"]),
    ],
)
def test_what_cannot_be_meant_stops_the_start(layer: Any) -> None:
    """C53, P68."""
    with pytest.raises(DeclarationError, match=r"response\.cors"):
        a_server(layer).seal()


def test_it_is_for_no_model_of_its_own() -> None:
    server = a_server()
    server.pipeline.response.register(response.cors([APP]), models=[Note])
    server.pipeline.auth.register(response.cors([APP]))
    with pytest.raises(DeclarationError) as refusal:
        server.seal()

    assert any("without models=" in problem for problem in refusal.value.problems)
    assert any("register it on pipeline.response" in problem for problem in refusal.value.problems)
