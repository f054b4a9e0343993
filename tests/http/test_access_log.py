"""Every request leaves one line under our own servers: what was asked, what came of it, who asked."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Next, Server
from maniflex._logging import JsonFormatter
from maniflex.http.access_log import AccessLog
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.processes import MANIFLEX, free_port, start_process

FIELDS = {"method", "route", "path", "status", "duration_ms", "bytes", "request_id", "client_ip"}


def a_server() -> Server:
    server = Server()
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def who(ctx: Context, next: Next) -> None:
        if ctx.header("x-user") == "nobody":
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        ctx.auth = AuthInfo(user_id="ada", tenant_id="acme")
        await next()

    return server


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "maniflex.access")
    formatter = JsonFormatter()
    return lambda: [json.loads(formatter.format(r)) for r in caplog.records if r.name == "maniflex.access"]


async def test_every_request_has_a_line_and_no_line_has_a_secret(lines: Any, database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url):
        transport = httpx.ASGITransport(app=AccessLog(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            made = (await http.post("/api/notes?q=hunter2", json={"text": "hunter2"})).json()["data"]
            read = await http.get(f"/api/notes/{made['id']}")
            await http.get("/api/notes", headers={"x-user": "nobody"})
            await http.get("/nowhere", headers={"x-request-id": "r-1"})
            await http.put("/api/notes")
            for probe in ("/live", "/ready", "/health"):
                await http.get(probe)

    told = lines()
    assert [(line["method"], line.get("route"), line["status"]) for line in told] == [
        ("POST", "/api/notes", 201),
        ("GET", "/api/notes/{id}", 200),
        ("GET", "/api/notes", 401),
        ("GET", None, 404),
        ("PUT", None, 405),
    ]
    assert told[1].keys() >= FIELDS
    assert told[1]["bytes"] == len(read.content)
    assert (told[1]["user_id"], told[1]["tenant_id"]) == ("ada", "acme")
    assert told[3]["request_id"] == "r-1"
    assert "hunter2" not in json.dumps(told)


async def test_a_client_that_left_is_499(lines: Any) -> None:
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/api/notes", "headers": []}
    request = asyncio.ensure_future(AccessLog(app)(scope, None, None))  # type: ignore[arg-type]  # never called
    await begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request

    assert [line["status"] for line in lines()] == [499]


@pytest.mark.parametrize("on", [True, False])
def test_maniflex_run_logs_unless_it_is_told_not_to(on: bool, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from maniflex import Model, Server\n\n\n"
        "class Note(Model):\n    text: str\n\n\n"
        f"server = Server(access_log={on})\nserver.register(Note)\n"
    )
    port = free_port()
    with start_process([MANIFLEX, "run", "app:server", "--port", str(port)], port, cwd=tmp_path) as served:
        served.until_up()
        httpx.get(f"http://127.0.0.1:{port}/api/notes?limit=3")
        served.send(signal.SIGINT)  # the line is written after the answer; one that stops in order writes it
        served.ended()

    assert ("GET /api/notes 200 " in served.output) is on
    assert "limit=3" not in served.output
    assert "/ready" not in served.output


async def test_the_front_page_shows_the_way_on_this_machine_only() -> None:
    server = a_server()
    async with client(server) as http:
        page = await http.get("/")
        docs = await http.get("/docs/")
        transport = httpx.ASGITransport(app=server, client=("192.0.2.7", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as elsewhere:
            hidden = await elsewhere.get("/")

    assert page.status_code == 200
    assert all(f'href="{place}"' in page.text for place in ("/docs", "/api/openapi.json", "/health"))
    assert (docs.status_code, docs.headers["location"]) == (308, "/docs")
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "NOT_FOUND")
