"""What streams cost: CPU of a delivered frame, memory of an idle connection, matching beside many others.

    python benchmarks/realtime.py                 # all of it, beside a bare loop through the same server
    python benchmarks/realtime.py --clients 200   # quicker

The clients are raw sockets of another process, which read and throw away. CPU is that of the serving process
alone, between the first byte sent and the last.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

APP = """
import asyncio, os, resource, time
from maniflex import Context, Model, Server, field

class Order(Model, events=True):
    title: str = field(default="")

server = Server(os.environ["DATABASE"], access_log=False)
server.register(Order)
server.events.declare("tick.one", audience="everyone")
server.realtime.enable(max_connections=None, max_connections_per_caller=None, max_subscriptions=None)

def memory() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

@server.action("POST", "/ticks")
async def ticks(ctx: Context) -> dict:
    wish = await ctx.bind_json()
    before = time.process_time()
    for _ in range(wish["times"]):
        async with server.transaction():
            for n in range(wish["count"]):
                await server.events.publish("tick.one", {"n": n, "pad": "x" * wish["size"]})
        await asyncio.sleep(wish.get("pause", 0))
    return {"cpu": time.process_time() - before}

@server.action("GET", "/numbers")
async def numbers(ctx: Context) -> dict:
    stats = server.realtime.stats()
    return {"kb": memory(), "cpu": time.process_time(), "kicked": stats.kicked}
"""
BARE = """
import asyncio, json, time
sends = []
from maniflex.http.protocol import SocketOptions

class App:
    websocket_options = SocketOptions(65536, 30.0, 60.0, 5.0, False)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await receive(); await send({"type": "lifespan.startup.complete"})
            await receive(); await send({"type": "lifespan.shutdown.complete"}); return
        if scope["type"] == "http":
            body = (await receive()).get("body", b"")
            if scope["path"] == "/send":
                wish = json.loads(body)
                for _ in range(wish["count"]):
                    for one in sends:
                        await one({"type": "websocket.send", "text": wish["text"]})
                    await asyncio.sleep(wish["pause"])
            text = json.dumps({"cpu": time.process_time(), "kb": memory()}).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": text}); return
        await receive()
        await send({"type": "websocket.accept"})
        sends.append(send)
        while (await receive())["type"] != "websocket.disconnect":
            pass

def memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

import uvicorn, sys
uvicorn.run(App(), port=int(sys.argv[1]), ws="maniflex.http.websocket:SocketProtocol", loop="uvloop",
            ws_per_message_deflate=False, ws_ping_interval=None, log_level="warning", access_log=False)
"""
FRAME = 0x81
PAUSE = 0.05  # seconds between two events: 20 in a second


class Readers:
    """Connections that read and count; a process has one set of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.frames = 0
        self.bytes = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, count: int, *messages: dict[str, Any]) -> None:
        """Open so many, each saying these messages."""
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 16)
            key = base64.b64encode(os.urandom(16)).decode()
            head = f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nUpgrade: websocket\r\n"
            head += f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")
            for message in messages:
                writer.write(_masked(json.dumps(message).encode()))
            self._writers.append(writer)
            self._tasks.append(asyncio.create_task(self._read(reader)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            self.bytes += len(data)

    async def until(self, size: int) -> None:
        """Wait until so many bytes have come in all."""
        while self.bytes < size:  # noqa: ASYNC110  # an event for every part would be measured too
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()


def _masked(payload: bytes) -> bytes:
    key = b"\x01\x02\x03\x04"
    size = len(payload)
    head = bytes([FRAME, 0x80 | size]) if size < 126 else bytes([FRAME, 0xFE]) + size.to_bytes(2, "big")
    return head + key + bytes(b ^ key[i % 4] for i, b in enumerate(payload))


def write(directory: str, name: str, text: str) -> None:
    """Write a program of the benchmark."""
    Path(directory, name).write_text(text)


@contextmanager
def process(*command: str, port: int, directory: str, ready: str) -> Iterator[str]:
    """A server in a process of its own."""
    environment = {**os.environ, "DATABASE": f"sqlite:///{directory}/bench.db"}
    server = subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(url + ready)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


async def measure_bare(port: int, clients: int, events: int, text: str) -> tuple[float, float]:
    """CPU of a frame in a bare loop, in microseconds, and kilobytes of a connection."""
    with tempfile.TemporaryDirectory() as directory:
        write(directory, "bare.py", BARE)
        with process(sys.executable, "bare.py", str(port), port=port, directory=directory, ready="/") as url:
            readers = Readers(port)
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                before = (await http.get("/")).json()["kb"]
                await readers.open(clients)
                await asyncio.sleep(1)
                start = (await http.get("/")).json()
                await http.post("/send", content=json.dumps({"text": text, "count": events, "pause": PAUSE}))
                await readers.until(clients * events * len(text))
                end = (await http.get("/")).json()
                await readers.close()
    frames = clients * events
    return (end["cpu"] - start["cpu"]) * 1e6 / frames, (start["kb"] - before) / clients


async def measure_hub(port: int, clients: int, events: int, others: int) -> dict[str, float]:
    """The same of a hub, with `others` subscriptions of other types beside them."""
    with tempfile.TemporaryDirectory() as directory:
        write(directory, "app.py", APP)
        command = [str(Path(sys.executable).with_name("maniflex")), "run", "app:server", "--port", str(port)]
        with process(*command, port=port, directory=directory, ready="/ready") as url:
            async with httpx.AsyncClient(base_url=url, timeout=120) as http:

                async def numbers() -> dict[str, float]:
                    data: dict[str, float] = (await http.get("/api/numbers")).json()["data"]
                    return data

                readers = Readers(port)
                before = await numbers()
                foreign = [{"op": "subscribe", "patterns": [f"other.{n}"]} for n in range(min(others, 90))]
                await readers.open(clients, {"op": "subscribe", "patterns": ["tick.*"]}, *foreign)
                await asyncio.sleep(1)
                idle = await numbers()
                length = await one_frame(readers, http, clients)
                start, bytes_before = await numbers(), readers.bytes
                wish = {"times": events, "count": 1, "size": 100, "pause": PAUSE}
                answer = (await http.post("/api/ticks", json=wish)).json()["data"]
                await readers.until(bytes_before + clients * events * length - clients * 200)
                await asyncio.sleep(0.3)
                end = await numbers()
                await readers.close()
                frames = clients * events
                return {
                    "frame": (end["cpu"] - start["cpu"]) * 1e6 / frames,
                    "publishing": answer["cpu"] * 1e6 / frames,
                    "kb": (idle["kb"] - before["kb"]) / clients,
                    "kicked": end["kicked"],
                    "length": length,
                }


async def one_frame(readers: Readers, http: httpx.AsyncClient, clients: int) -> int:
    """How long a frame is, told by one event."""
    before = readers.bytes
    await http.post("/api/ticks", json={"times": 1, "count": 1, "size": 100})
    await asyncio.sleep(1)
    return (readers.bytes - before) // clients


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--port", type=int, default=18400)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    hub = await measure_hub(options.port, options.clients, options.events, 0)
    text = "x" * int(hub["length"] - 4)
    bare, bare_kb = await measure_bare(options.port + 1, options.clients, options.events, text)
    crowd = await measure_hub(options.port + 2, options.clients, options.events, 90)
    print(f"{options.clients} clients, {options.events} events, frames of {hub['length']:.0f} bytes")
    print(f"bare loop     {bare:6.1f} µs of CPU a frame, {bare_kb:5.1f} KB a connection")
    print(f"hub           {hub['frame']:6.1f} µs, {hub['kb']:5.1f} KB idle, {hub['kicked']:.0f} kicked")
    print(f"  ratio {hub['frame'] / bare:.2f}")
    print(f"with 90 foreign subscriptions each {crowd['frame']:6.1f} µs, {crowd['kicked']:.0f} kicked")


if __name__ == "__main__":
    asyncio.run(main())
