"""SSE, resume and pressure on real listeners: two processes, kills, bursts, readers that stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.kit.processes import Served
from tests.kit.streams import (
    RawSocket,
    frame,
    hear,
    next_event,
    order,
    socket_to,
    stream_of,
    streaming,
    tell,
)
from tests.kit.waiting import eventually

BURST_APP = """
import os
from maniflex import Context, Model, Server, field

class Order(Model, events=True):
    title: str = field(default="")
    n: int = field(default=0)

server = Server(os.environ["DATABASE"])
server.register(Order)
server.realtime.enable(**{"max_connections_per_caller": None, **eval(os.environ["OPTIONS"])})

@server.action("POST", "/burst")
async def burst(ctx: Context) -> dict:
    wish = await ctx.bind_json()
    async with ctx.transaction():
        for n in range(wish["count"]):
            await ctx.db(Order).create(n=n, title="x" * wish.get("size", 1))
    return {}

@server.action("GET", "/numbers")
async def numbers(ctx: Context) -> dict:
    stats = server.realtime.stats()
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS")]
    return {"kicked": stats.kicked, "connections": stats.connections, "kb": int(line.split()[1])}
"""


def of(database_url: str, tmp_path: Path) -> str:
    """The database of a test as processes name it."""
    return f"sqlite:///{tmp_path}/orders.db" if database_url.startswith("sqlite") else database_url


async def burst(served: Served, count: int, size: int = 1) -> None:
    async with httpx.AsyncClient(base_url=served.url, timeout=120) as http:
        answer = await http.post("/api/burst", json={"count": count, "size": size})
        assert answer.status_code == 200, answer.text


async def numbers(served: Served) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        data: dict[str, Any] = (await http.get("/api/numbers")).json()["data"]
        return data


async def test_a_stream_begins_at_once_and_goes_on_from_its_last_id(
    database_url: str, tmp_path: Path
) -> None:
    with streaming(tmp_path, of(database_url, tmp_path)) as served:
        async with stream_of(served) as stream:
            headers = stream.response.headers
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["cache-control"] == "no-store"
            assert headers["x-accel-buffering"] == "no"
            first = await stream.block()
            assert (first["retry"], "id" in first) == ("3000", True)
            await order(served, 1)
            event = await stream.event()
            assert event["data"]["n"] == 1
        for n in (2, 3):
            await order(served, n)
        async with stream_of(served, **{"Last-Event-ID": event["cursor"]}) as stream:
            assert [(await stream.event())["data"]["n"] for _ in range(2)] == [2, 3]
        async with stream_of(served, f"/sse?subscribe=order.*&lastEventId={first['id']}") as stream:
            assert [(await stream.event())["data"]["n"] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("cursor", ["garbage", "0123456789abcdef:1", "{epoch}:99999", "{epoch}:x", ":"])
async def test_a_cursor_that_cannot_be_continued_is_one_resync(tmp_path: Path, cursor: str) -> None:
    with streaming(tmp_path, f"sqlite:///{tmp_path}/orders.db") as served:
        async with socket_to(served) as ws:
            now = (await tell(ws, op="ping"))["cursor"]
            text = cursor.format(epoch=now.partition(":")[0])
            ack = await tell(ws, op="subscribe", patterns=["*"], after=text)
            assert ack["op"] == "ack"
            assert await hear(ws) == {"op": "resync", "subId": "s_1", "cursor": now}
            async with stream_of(served, **{"Last-Event-ID": text}) as stream:
                await stream.block()
                resync = await stream.block()
                assert (resync["event"], resync["id"]) == ("resync", now)
                await order(served, 1)
                assert (await stream.event())["data"]["n"] == 1
            assert (await hear(ws))["op"] == "event"


async def test_an_event_of_one_process_reaches_clients_of_another(database_url: str, tmp_path: Path) -> None:
    database = of(database_url, tmp_path)
    with streaming(tmp_path, database) as one, streaming(tmp_path, database) as other:
        async with socket_to(other) as ws, stream_of(other) as stream:
            await tell(ws, op="subscribe", patterns=["order.*"])
            await stream.block()
            for n in range(5):
                began = time.monotonic()
                await order(one, n)
                assert (await next_event(ws))["data"]["data"]["n"] == n
                assert (await stream.event())["data"]["n"] == n
                assert time.monotonic() - began < 5


async def write_until(served: Served, stop: asyncio.Event, pause: float) -> int:
    """Make orders one after another, numbered from 0; how many were stored."""
    n = 0
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as http:
        while not stop.is_set():
            answer = await http.post("/api/orders", json={"n": n})
            assert answer.status_code == 201, answer.text
            n += 1
            await asyncio.sleep(pause)
    return n


async def kill_and_resume(database: str, tmp_path: Path, kills: int, pause: float) -> None:
    """Kill the process that serves a client while another writes, again and again; each event comes once."""
    heard: list[int] = []
    cursor: str | None = None
    stop = asyncio.Event()
    with streaming(tmp_path, database) as writer:
        async with socket_to(writer) as ws:
            cursor = (await tell(ws, op="ping"))["cursor"]
        writing = asyncio.create_task(write_until(writer, stop, pause))
        for number in range(kills):
            directory = tmp_path / f"reader-{number}"
            directory.mkdir()
            with streaming(directory, database) as reader:
                async with socket_to(reader) as ws:
                    await tell(ws, op="subscribe", patterns=["order.*"], after=cursor)
                    enough = len(heard) + 25
                    while len(heard) < enough:
                        event = await next_event(ws)
                        heard.append(event["data"]["data"]["n"])
                        cursor = event["cursor"]
                    os.killpg(reader.process.pid, signal.SIGKILL)
                    with suppress(ConnectionClosed):
                        while True:
                            event = await next_event(ws)
                            heard.append(event["data"]["data"]["n"])
                            cursor = event["cursor"]
        stop.set()
        count = await writing
        async with socket_to(writer) as ws:
            await tell(ws, op="subscribe", patterns=["order.*"], after=cursor)
            while len(heard) < count:
                heard.append((await next_event(ws))["data"]["data"]["n"])
    assert heard == list(range(count))


async def test_kills_lose_and_repeat_nothing(database_url: str, tmp_path: Path) -> None:
    await kill_and_resume(of(database_url, tmp_path), tmp_path, kills=3, pause=0.005)


@pytest.mark.long
async def test_a_hundred_kills_lose_and_repeat_nothing(database_url: str, tmp_path: Path) -> None:
    await kill_and_resume(of(database_url, tmp_path), tmp_path, kills=100, pause=0.001)


async def test_a_burst_reaches_a_healthy_client_whole(database_url: str, tmp_path: Path) -> None:
    with streaming(tmp_path, of(database_url, tmp_path), BURST_APP) as served:
        async with socket_to(served) as ws, stream_of(served) as stream:
            await tell(ws, op="subscribe", patterns=["order.*"])
            await stream.block()

            async def read_socket() -> list[int]:
                cursors = [(await next_event(ws))["cursor"] for _ in range(5_000)]
                return [int(cursor.partition(":")[2]) for cursor in cursors]

            async def read_stream() -> list[int]:
                return [(await stream.event())["data"]["n"] for _ in range(5_000)]

            # Whoever reads nothing for a second while so much waits is dropped, so both read at once.
            _, places, seen = await asyncio.gather(burst(served, 5_000), read_socket(), read_stream())
            assert places == list(range(places[0], places[0] + 5_000))
            assert seen == list(range(5_000))
        assert (await numbers(served))["kicked"] == 0


async def test_a_client_that_stops_reading_is_dropped_and_costs_little(tmp_path: Path) -> None:
    options = {"send_timeout": 2.0}
    with streaming(tmp_path, f"sqlite:///{tmp_path}/o.db", BURST_APP, **options) as served:
        async with socket_to(served) as ws:
            await tell(ws, op="subscribe", patterns=["order.*"])
            for _ in range(3):  # what bursts and the events in memory take anyhow
                await burst(served, 200, 10_000)
                for _ in range(200):
                    await next_event(ws)
            before = await numbers(served)
            stuck = [RawSocket(served.port, receive_buffer=4096) for _ in range(4)]
            for raw in stuck:
                raw.send(frame(1, b'{"op":"subscribe","patterns":["*"]}'))
                raw.receive()
            for _ in range(3):
                await burst(served, 200, 10_000)
                for _ in range(200):
                    await next_event(ws)

            async def is_dropped() -> bool:
                return bool((await numbers(served))["connections"] == 1)

            await eventually(is_dropped, "the end of the clients that read nothing")
            after = await numbers(served)
            assert after["kicked"] == 4
            assert after["kb"] - before["kb"] < 4 * 1024 + 2048, (before, after)
            began = time.monotonic()
            served.send(signal.SIGTERM)
            assert served.ended() == 0
            assert time.monotonic() - began < 3
        for raw in stuck:
            raw.socket.close()


async def test_what_is_pruned_is_told_as_resync(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with streaming(tmp_path, f"sqlite:///{path}") as served:
        async with socket_to(served) as ws:
            start = (await tell(ws, op="ping"))["cursor"]
        for n in range(3):
            await order(served, n)
        async with socket_to(served) as ws:
            await tell(ws, op="subscribe", patterns=["*"], after=start)
            await next_event(ws)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE event_position SET pruned = 2")
        database.execute("DELETE FROM event_log WHERE position <= 2")
    with streaming(tmp_path, f"sqlite:///{path}") as served:
        async with socket_to(served) as ws:
            await tell(ws, op="subscribe", patterns=["*"], after=start)
            assert (await hear(ws))["op"] == "resync"
            epoch = start.partition(":")[0]
            await tell(ws, op="subscribe", patterns=["*"], after=f"{epoch}:2")
            assert (await hear(ws))["data"]["data"]["n"] == 2
