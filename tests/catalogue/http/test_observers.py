"""Observers see every request when it is over (K4, C58, C59), and the request numbers count them (R19)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Next, Response, Server
from maniflex.http.access_log import AccessLog
from maniflex.http.asgi import HttpApp
from maniflex.pipeline.observation import Observation
from maniflex.testing import client
from tests.kit.http import created
from tests.kit.notes import Note
from tests.kit.sockets import a_request, connected, listening
from tests.kit.waiting import eventually


def a_server(**settings: Any) -> Server:
    server = Server(max_body_size=2000, **settings)
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def sign_in(ctx: Context, next: Next) -> None:
        if ctx.header("x-user") is None:
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        ctx.auth = AuthInfo(user_id=ctx.header("x-user") or "", tenant_id="acme")
        await next()

    @server.action("GET", "/fail/{kind}")
    async def fail(ctx: Context) -> Any:
        if ctx.url_param("kind") == "limit":
            ctx.abort(429, "RATE_LIMITED", "slow down")
        raise KeyError("broken")

    @server.action("GET", "/hang")
    async def hang(ctx: Context) -> Any:
        await asyncio.Event().wait()

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> Any:
        async def pieces() -> Any:
            yield b"12345"
            yield b"678"

        return Response(200, stream=pieces())

    return server


ADA = {"x-user": "ada"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def ask_everything(http: httpx.AsyncClient) -> None:
    """One request of each fate."""
    await http.get("/api/notes?token=hunter2", headers={**ADA, "cookie": "token=hunter2"})
    await http.get("/api/notes", headers={"authorization": "Bearer hunter2"})
    await http.get("/nowhere/hunter")
    await http.put("/api/notes", headers=ADA)
    await http.post("/api/notes", json={"text": "hunter2" * 1000}, headers=ADA)
    await http.get("/api/fail/limit", headers=ADA)
    await http.get("/api/fail/panic", headers=ADA)


FATES = [
    ("/api/notes", 200),
    ("/api/notes", 401),
    ("", 404),
    ("", 405),
    ("/api/notes", 413),
    ("/api/fail/{kind}", 429),
    ("/api/fail/{kind}", 500),
]


async def test_every_fate_of_a_request_is_seen(database_url: str) -> None:
    """C58."""
    seen: list[Observation] = []
    server = a_server()
    server.observe(seen.append)
    async with client(server, database=database_url) as http:
        await ask_everything(http)

    assert [(one.route, one.status) for one in seen] == FATES
    assert "hunter2" not in repr(seen)
    assert all(one.duration > 0 and one.request_id and one.client_ip == "127.0.0.1" for one in seen)


async def test_an_observation_says_who_asked_for_what(database_url: str) -> None:
    seen: list[Observation] = []
    server = a_server(trusted_proxies=1)
    server.observe(seen.append)
    async with client(server, database=database_url) as http:
        http.headers.update(ADA)
        note = await created(http, "/api/notes", text="hello")
        headers = {"x-request-id": "r-1", "traceparent": TRACE, "x-forwarded-for": "192.0.2.7"}
        answer = await http.get(f"/api/notes/{note['id']}", headers=headers)
        await http.get("/api/stream")
        await http.get("/live")

    read, streamed, probe = seen[1:]
    assert read._replace(duration=0.0) == Observation(
        "GET", "/api/notes/{id}", f"/api/notes/{note['id']}", "Note", "read", 200, 0.0, len(answer.content),
        "r-1", TRACE[3:35], "ada", "acme", "192.0.2.7", note["id"],
        traceparent=TRACE,
    )  # fmt: skip
    assert (streamed.operation, streamed.model, streamed.bytes_sent) == ("action", "", 8)
    assert (probe.route, probe.operation, probe.actor_id) == ("/live", "", "")


async def test_a_client_that_left_is_499(sqlite_url: str) -> None:
    """C58."""
    seen: list[Observation] = []
    server = a_server(database=sqlite_url)
    server.observe(seen.append)
    async with listening(server) as port:
        async with connected(port) as connection:
            await connection.send(a_request("GET", "/api/hang", b"", "X-User: ada"))
            connection.leave()
        await eventually(lambda: seen)

    assert [(one.route, one.status, one.bytes_sent) for one in seen] == [("/api/hang", 499, 0)]


async def test_observers_that_raise_or_hang_change_nothing(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C59."""
    seen: list[Observation] = []
    calls: list[str] = []
    server = a_server(shutdown_timeout=1)

    @server.observe
    def broken(observation: Observation) -> None:
        raise KeyError("an observer")

    @server.observe
    async def broken_later(observation: Observation) -> None:
        raise KeyError("a later observer")

    @server.observe
    async def endless(observation: Observation) -> None:
        calls.append("endless")
        await asyncio.Event().wait()

    server.observe(seen.append)
    async with client(server, database=sqlite_url) as http:
        http.headers.update(ADA)
        answers = [await http.get("/api/notes") for _ in range(3)]
        await eventually(lambda: len(calls) == 3)

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len(seen) == 3
    failures = [record for record in caplog.records if "broken" in record.getMessage()]
    assert len(failures) == 6


async def test_shutdown_waits_for_what_an_observer_has_begun(sqlite_url: str) -> None:
    """C59."""
    begun, written = asyncio.Event(), []
    server = a_server()

    @server.observe
    async def write(observation: Observation) -> None:
        begun.set()
        for _ in range(50):
            await asyncio.sleep(0)
        written.append(observation.status)

    async with client(server, database=sqlite_url) as http:
        http.headers.update(ADA)
        await http.get("/api/notes")
        await begun.wait()

    assert written == [200]


async def test_the_access_log_and_observers_measure_once(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "maniflex.access")
    seen: list[Observation] = []
    server = a_server(trusted_proxies=1)
    server.observe(seen.append)
    async with client(server, database=sqlite_url):
        transport = httpx.ASGITransport(app=AccessLog(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            await http.get("/api/notes", headers={**ADA, "x-forwarded-for": "192.0.2.7"})
            await http.get("/gone%0Anext", headers={"x-forwarded-for": "192.0.2.7"})

    lines = [record for record in caplog.records if record.name == "maniflex.access"]
    assert [line.client_ip for line in lines] == ["192.0.2.7"] * 2  # type: ignore[attr-defined]
    assert [line.levelname for line in lines] == ["INFO", "WARNING"]
    assert "\n" not in lines[1].getMessage()
    assert [one.path for one in seen] == ["/api/notes", "/gone\nnext"]


def test_a_server_without_observers_and_layers_has_nothing_around_it() -> None:
    server = Server()
    server.seal()

    assert type(server._seal().app) is HttpApp


async def test_requests_are_counted_by_route_and_no_client_makes_a_series(database_url: str) -> None:
    """C58: ten thousand random paths are as good as a hundred; the labels cannot hold them."""
    server = a_server(metrics_enabled=True)
    async with client(server, database=database_url) as http:
        await ask_everything(http)
        before = series((await http.get("/metrics")).text)
        for number in range(100):
            await http.request(f"WORD{number}", f"/random/{number}")
            await http.get(f"/api/notes/{number}", headers=ADA)
        page = (await http.get("/metrics")).text

    assert 'maniflex_requests_total{method="GET",route="/api/notes",status="401"} 1.0' in page
    assert 'maniflex_requests_total{method="other",route="",status="404"} 100.0' in page
    assert 'maniflex_requests_total{method="GET",route="/api/notes/{id}",status="404"} 100.0' in page
    assert 'maniflex_request_duration_seconds_count{method="GET",route="/api/notes/{id}"} 100.0' in page
    assert 'maniflex_request_duration_seconds_bucket{le="+Inf",method="GET",route="/api/notes"} 2.0' in page
    routes = {("other", ""), ("GET", "/api/notes/{id}"), ("GET", "/metrics")}
    assert {re.sub('",status.*', "", one) for one in series(page) - before} == {
        f'method="{method}",route="{route}' for method, route in routes
    }


def series(page: str) -> set[str]:
    return set(re.findall(r"^maniflex_requests_total\{(.*)\}", page, re.MULTILINE))
