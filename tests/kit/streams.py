"""Servers with streams in processes of their own, and clients that keep or break the protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.kit.processes import Served, serve_process

APP = """
import os
from maniflex import Model, Server, field

class Order(Model, events=True):
    title: str = field(default="")
    n: int = field(default=0)

server = Server(os.environ["DATABASE"])
server.register(Order)
options = eval(os.environ.get("OPTIONS", "{}"))
server.realtime.enable(**{"max_connections_per_caller": None, **options})
"""


@contextmanager
def streaming(directory: Path, database: str, app: str = APP, **options: Any) -> Iterator[Served]:
    """A process that serves streams of orders."""
    (directory / "app.py").write_text(app)
    with serve_process(directory, DATABASE=database, OPTIONS=repr(options)) as served:
        yield served


@asynccontextmanager
async def socket_to(served: Served, path: str = "/ws", **options: Any) -> AsyncIterator[ClientConnection]:
    """A WebSocket connection."""
    async with connect(served.url.replace("http", "ws") + path, **{"proxy": None, **options}) as ws:
        yield ws


async def tell(ws: ClientConnection, **message: Any) -> dict[str, Any]:
    """Send a message; the next one that comes."""
    await ws.send(json.dumps(message))
    return await hear(ws)


async def hear(ws: ClientConnection, within: float = 20) -> dict[str, Any]:
    """The next message of the server."""
    async with asyncio.timeout(within):
        message: dict[str, Any] = json.loads(await ws.recv())
    return message


async def next_event(ws: ClientConnection, within: float = 20) -> dict[str, Any]:
    """The next event, whatever else is said before."""
    while (message := await hear(ws, within))["op"] != "event":
        pass
    return message


async def order(served: Served, n: int, title: str = "") -> None:
    """Make an order."""
    async with httpx.AsyncClient(base_url=served.url) as http:
        answer = await http.post("/api/orders", json={"n": n, "title": title})
        assert answer.status_code == 201, answer.text


class Lines:
    """The blocks of an SSE stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def block(self, within: float = 20) -> dict[str, str]:
        """The fields of the next block; a comment is the field without a name."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(within):
            async for line in self._lines:
                if not line:
                    return fields
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
        raise EOFError

    async def event(self, within: float = 20) -> dict[str, Any]:
        """The CloudEvent of the next block that has one."""
        while "data" not in (block := await self.block(within)) or "event" in block:
            pass
        event: dict[str, Any] = json.loads(block["data"])
        return {"cursor": block["id"], **event}


@asynccontextmanager
async def stream_of(served: Served, path: str = "/sse", **headers: str) -> AsyncIterator[Lines]:
    """An SSE stream."""
    timeout = httpx.Timeout(30, read=None)
    async with (
        httpx.AsyncClient(base_url=served.url, timeout=timeout) as http,
        http.stream("GET", path, headers=headers) as response,
    ):
        yield Lines(response)


# Clients that say what no client should.


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """A frame as it is asked for, right or wrong."""
    head = bytes([(0x80 if fin else 0) | rsv | opcode])
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([bit | len(payload)])
    elif len(payload) < 65536:
        head += struct.pack("!BH", bit | 126, len(payload))
    else:
        head += struct.pack("!BQ", bit | 127, len(payload))
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(byte ^ key[i % 4] for i, byte in enumerate(payload))


class RawSocket:
    """A WebSocket connection of bytes."""

    def __init__(self, port: int, path: str = "/ws", *, receive_buffer: int = 0, headers: str = "") -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        )
        self.socket.sendall(("\r\n".join(lines) + "\r\n" + headers + "\r\n").encode())
        self.head = b""
        while b"\r\n\r\n" not in self.head:
            self.head += self._take(1)

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        first, second = self._take(2)
        assert not second & 0x80, "a server masks nothing"
        size = second & 0x7F
        if size == 126:
            [size] = struct.unpack("!H", self._take(2))
        elif size == 127:
            [size] = struct.unpack("!Q", self._take(8))
        return first & 0x0F, self._take(size)

    def close_code(self) -> int:
        """The code of the close frame that ends the connection."""
        while True:
            opcode, payload = self.receive()
            if opcode == 8:
                [code] = struct.unpack("!H", payload[:2])
                return int(code)

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()
