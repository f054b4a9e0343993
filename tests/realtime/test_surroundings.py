"""Streams in what surrounds them: quiet hours, a database that is away, other servers, replicas."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from maniflex import Model, Server, field
from maniflex.doctor.run import examine
from maniflex.errors import RequestError
from maniflex.middleware import response
from maniflex.testing import FakeClock, client, sse, websocket
from maniflex.testing.streams import ConnectionEnded, StreamClient
from tests.kit.processes import free_port, start_process
from tests.kit.streams import APP, next_event, order, socket_to, stream_of, streaming, tell
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually


class Sheet(Model, events=True):
    """What streams tell of."""

    title: str = field(default="")


def make_server(url: str = "sqlite:///:memory:", **options: Any) -> Server:
    server = Server(url)
    server.register(Sheet)
    server.realtime.enable(**options)
    return server


async def until_block(stream: StreamClient, text: str) -> str:
    """The next block that has this text."""
    while text not in (block := await stream.block()):
        pass
    return block


async def test_a_quiet_hour_moves_the_position_and_repeats_nothing(database_url: str) -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    server = make_server(database_url)
    server.events.declare("other.one", audience="everyone")
    async with client(server, database=database_url, clock=clock):
        async with sse(server, query={"subscribe": "sheet.*"}) as stream, websocket(server) as ws:
            first = await stream.block()
            await ws.subscribe("sheet.*")
            for _ in range(60):
                await server.events.publish("other.one", {}, outside_transaction=True)
                await server.events.drain()
                clock.advance(timedelta(minutes=1))
                block = await until_block(stream, "keepalive")
            cursor = block.partition("id: ")[2].partition("\n")[0]
            assert cursor not in first
            moved = ""
            while moved != cursor:
                message = await ws.receive()
                assert message["op"] == "cursor"
                moved = message["cursor"]
        async with sse(server, query={"subscribe": "sheet.*"}, headers={"last-event-id": cursor}) as stream:
            assert cursor in await stream.block()
            await server.db(Sheet).create(title="at last")
            event = await stream.receive()
            assert (event.event, event.data["data"]["title"]) == ("message", "at last")


async def test_connections_outlive_a_database_that_is_away(postgres_url: str) -> None:
    relay = Relay(postgres_url)
    await relay.listen()
    server = make_server(relay.url, ping_interval=0.2, read_timeout=1)
    async with client(server, database=relay.url), sse(server) as stream:
        await stream.block()
        await server.db(Sheet).create(title="before")
        assert (await stream.receive()).data["data"]["title"] == "before"
        await relay.cut()
        for _ in range(3):
            await until_block(stream, "keepalive")
        await relay.listen()

        async def is_written() -> bool:
            try:
                await server.db(Sheet).create(title="after")
            except RequestError:
                return False
            return True

        await eventually(is_written, "a database that is back")
        assert (await stream.receive()).data["data"]["title"] == "after"
    await relay.cut()


async def test_cors_of_the_api_has_no_say_about_streams() -> None:
    server = make_server(origins=["https://app.example"])
    server.pipeline.response.register(response.cors("https://other.example"))
    async with client(server) as http:
        async with sse(server, headers={"origin": "https://app.example"}) as stream:
            assert stream.headers["access-control-allow-origin"] == "https://app.example"
        refused = await http.get("/sse", headers={"origin": "https://other.example"})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


async def test_the_doctor_warns_of_a_hub_that_asks_nobody() -> None:
    async with (server := make_server()).lifespan():
        report = await examine(server.doctor_subject(), is_running=True)
    assert [finding.where for finding in report.findings if finding.code == "T182"] == ["server.realtime"]


async def test_a_server_that_stops_says_so(database_url: str) -> None:
    server = make_server(database_url)
    async with client(server, database=database_url) as http:
        async with websocket(server) as ws, sse(server) as stream:
            await ws.subscribe("*")
            await stream.block()
            server.end_streams()
            bye = await ws.receive()
            assert bye["op"] == "bye"
            assert bye["retry"] > 0
            with pytest.raises(ConnectionEnded) as ended:
                await ws.receive()
            assert ended.value.code == 1001
            with pytest.raises(ConnectionEnded):
                await stream.receive()
            assert 1000 <= stream.retry <= 5000
        late = await http.get("/sse")
        assert (late.status_code, late.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert late.text.startswith("retry: ")


FOREIGN = """
import os, sys
sys.path.insert(0, os.getcwd())
import uvicorn
from app import server
{mount}
uvicorn.run({app}, port=int(sys.argv[1]), log_level="trace")
"""
MOUNT = """
from starlette.applications import Starlette
from starlette.routing import Mount
outer = Starlette(routes=[Mount("/inner", app=server)])
"""


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_it_works_under_another_uvicorn_and_in_a_mount(tmp_path: Path, is_mounted: bool) -> None:
    (tmp_path / "app.py").write_text(APP)
    mount, app = (MOUNT, "outer") if is_mounted else ("", "server")
    (tmp_path / "serve.py").write_text(FOREIGN.format(mount=mount, app=app))
    port, root = free_port(), "/inner" if is_mounted else ""
    database = f"sqlite:///{tmp_path}/orders.db"
    with start_process(
        [sys.executable, "serve.py", str(port)], port, cwd=tmp_path, DATABASE=database
    ) as served:

        async def answers() -> bool:
            try:
                async with httpx.AsyncClient() as http:
                    return (await http.get(f"{served.url}{root}/api/orders")).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(answers, "the server")
        async with (
            connect(f"ws://127.0.0.1:{port}{root}/ws?access_token=hunter2", proxy=None) as ws,
            stream_of(served, f"{root}/sse?access_token=hunter3") as stream,
        ):
            assert (await tell(ws, op="subscribe", patterns=["order.*"]))["op"] == "ack"
            await stream.block()
            async with httpx.AsyncClient(base_url=f"{served.url}{root}") as http:
                for n in range(300):
                    assert (await http.post("/api/orders", json={"n": n})).status_code == 201
            assert [(await next_event(ws))["data"]["data"]["n"] for _ in range(300)] == list(range(300))
            assert [(await stream.event())["data"]["n"] for _ in range(300)] == list(range(300))
            await ws.send("x" * (64 * 1024 + 1))
            async with asyncio.timeout(20):
                await ws.wait_closed()
            assert ws.close_code == 1009
        assert "hunter" not in served.output


async def test_a_revocation_reaches_the_clients_of_another_process(database_url: str, tmp_path: Path) -> None:
    app = (
        APP
        + """
from maniflex import AuthInfo, Context, Next

@server.pipeline.auth.middleware()
async def authenticate(ctx: Context, next: Next) -> None:
    user = ctx.request.headers.get("x-user")
    ctx.auth = AuthInfo(user) if user else None
    await next()

@server.action("POST", "/out")
async def out(ctx: Context) -> None:
    async with ctx.transaction():
        await server.realtime.disconnect(user_id="ada")
        await ctx.db(Order).create(n=99)
"""
    )
    database = f"sqlite:///{tmp_path}/o.db" if database_url.startswith("sqlite") else database_url
    with streaming(tmp_path, database, app) as one, streaming(tmp_path, database, app) as other:
        async with (
            socket_to(other, additional_headers={"x-user": "ada"}) as ada,
            socket_to(other, additional_headers={"x-user": "eve"}) as eve,
        ):
            for ws in (ada, eve):
                await tell(ws, op="subscribe", patterns=["*"])
            await order(one, 1)
            for ws in (ada, eve):
                assert (await next_event(ws))["data"]["data"]["n"] == 1
            async with httpx.AsyncClient(base_url=one.url) as http:
                assert (await http.post("/api/out")).status_code == 204
            assert (await next_event(eve))["data"]["data"]["n"] == 99
            async with asyncio.timeout(5):
                await ada.wait_closed()
            assert ada.close_code == 4401
