"""Clients of streams for tests: WebSocket and SSE without a socket, of a server that is started.

async with client(server) as http, websocket(server) as ws:
    await ws.send({"op": "subscribe", "patterns": ["order.*"]})
    ack = await ws.receive()
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

PATIENCE = 10.0  # seconds that a message may take to come


class HandshakeRefused(Exception):
    """The server refused the connection; `status` and `body` say how."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body

    @property
    def code(self) -> str:
        """The code of the error envelope."""
        return str(self.body["error"]["code"]) if isinstance(self.body, dict) else ""


class ConnectionEnded(Exception):
    """The server has closed the connection with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of an SSE stream: its name (`message` unless it says another), its data and its id."""

    event: str
    data: Any
    id: str


def _scope(kind: str, path: str, headers: Mapping[str, str] | None, query: Any) -> dict[str, Any]:
    path, _, behind = path.partition("?")
    text = query if isinstance(query, str) else urlencode(query or {}, doseq=True)
    pairs = {"host": "test", **{name.lower(): value for name, value in (headers or {}).items()}}
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "ws" if kind == "websocket" else "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": (text or behind).encode(),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("test", 80),
        "state": {},
    }


class WebSocketClient:
    """One WebSocket connection."""

    def __init__(self, server: Any, scope: dict[str, Any]) -> None:
        self._out: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.subprotocol: str | None = None
        self._task = asyncio.create_task(server(scope, self._out.get, self._in.put))
        self._out.put_nowait({"type": "websocket.connect"})

    async def _open(self) -> None:
        message = await self._next()
        if message["type"] == "websocket.accept":
            self.subprotocol = message.get("subprotocol")
            return
        status, body = 403, b""
        if message["type"] == "websocket.http.response.start":
            status = message["status"]
            body = (await self._next()).get("body", b"")
        raise HandshakeRefused(status, json.loads(body) if body else None)

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self._in.get()

    async def send(self, message: Any) -> None:
        """Send a message: a text as it is, anything else as JSON."""
        text = message if isinstance(message, str) else json.dumps(message)
        await self._out.put({"type": "websocket.receive", "text": text})

    async def receive(self) -> dict[str, Any]:
        """The next message of the server; `ConnectionEnded` where it has closed the connection."""
        message = await self._next()
        if message["type"] == "websocket.close":
            raise ConnectionEnded(message.get("code", 1000))
        values: dict[str, Any] = json.loads(message["text"])
        return values

    async def subscribe(self, *patterns: str, **values: Any) -> dict[str, Any]:
        """Subscribe; the answer."""
        await self.send({"op": "subscribe", "patterns": list(patterns), **values})
        return await self.receive()

    async def close(self) -> None:
        """Leave."""
        self._out.put_nowait({"type": "websocket.disconnect", "code": 1000})
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._task


@asynccontextmanager
async def websocket(
    server: Any,
    path: str = "/ws",
    *,
    headers: Mapping[str, str] | None = None,
    query: Any = None,
    subprotocols: Sequence[str] = (),
) -> AsyncIterator[WebSocketClient]:
    """A WebSocket connection to a started server; `HandshakeRefused` where it is refused."""
    scope = _scope("websocket", path, headers, query)
    scope |= {"subprotocols": list(subprotocols), "extensions": {"websocket.http.response": {}}}
    socket = WebSocketClient(server, scope)
    try:
        await socket._open()
        yield socket
    finally:
        await socket.close()


class StreamClient:
    """One SSE stream."""

    def __init__(self, server: Any, scope: dict[str, Any]) -> None:
        self._chunks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._left: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._left.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self._text = ""
        self._has_ended = False
        self.headers: dict[str, str] = {}
        self.last_id = ""
        self.retry = 0
        self._task = asyncio.create_task(server(scope, self._left.get, self._chunks.put))

    async def _open(self) -> None:
        start = await self._next()
        self.headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in start["headers"]}
        if start["status"] != 200:
            body = (await self._next()).get("body", b"")
            raise HandshakeRefused(start["status"], json.loads(body) if body else None)

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self._chunks.get()

    async def receive(self) -> StreamEvent:
        """The next event of the server; `ConnectionEnded` where the stream has ended."""
        while True:
            block = await self.block()
            fields: dict[str, list[str]] = {}
            for line in block.split("\n"):
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
            self.last_id = fields.get("id", [self.last_id])[-1]
            self.retry = int(fields.get("retry", [str(self.retry)])[-1])
            if "data" in fields:
                data = "\n".join(fields["data"])
                return StreamEvent(fields.get("event", ["message"])[-1], json.loads(data), self.last_id)

    async def block(self) -> str:
        """The next lines up to an empty one, whatever they say."""
        while "\n\n" not in self._text:
            if self._has_ended:
                raise ConnectionEnded(0)
            message = await self._next()
            self._text += message.get("body", b"").decode()
            self._has_ended = not message.get("more_body", False)
        block, _, self._text = self._text.partition("\n\n")
        return block

    async def close(self) -> None:
        """Leave."""
        self._left.put_nowait({"type": "http.disconnect"})
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._task


@asynccontextmanager
async def sse(
    server: Any,
    path: str = "/sse",
    *,
    headers: Mapping[str, str] | None = None,
    query: Any = None,
) -> AsyncIterator[StreamClient]:
    """An SSE stream of a started server; `HandshakeRefused` where it is refused."""
    stream = StreamClient(server, {**_scope("http", path, headers, query), "method": "GET"})
    try:
        await stream._open()
        yield stream
    finally:
        await stream.close()
