"""A server on a socket of its own, in the loop of the test or in a thread, and requests as bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from maniflex import Server
from maniflex.http.protocol import PatientProtocol
from maniflex.http.serve import bind

# What `maniflex run` uses, and the two of a plain uvicorn.
PROTOCOLS: dict[str, Any] = {"ours": PatientProtocol, "httptools": "httptools", "h11": "h11"}


@asynccontextmanager
async def listening(server: Server, http: Any = PatientProtocol) -> AsyncIterator[int]:
    """The port of the running server."""
    config = uvicorn.Config(server, http=http, lifespan="off", log_config=None, access_log=False)
    host = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with server.lifespan():
            serving = asyncio.create_task(host.serve(sockets=[listener]))
            yield listener.getsockname()[1]
            host.should_exit = True
            await serving


@contextmanager
def listening_in_a_thread(server: Server, database: str) -> Iterator[str]:
    """The address of the server, which runs in a thread of its own."""
    listener = bind("127.0.0.1", 0)
    with server.on_database(database), listener:
        host = uvicorn.Server(uvicorn.Config(server, log_config=None, lifespan="on"))
        thread = threading.Thread(target=host.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            host.should_exit = True
            thread.join()


class Connection:
    """One kept-alive connection of a client that costs next to nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the decoded body of the answer to a request."""
        content = b"" if body is None else json.dumps(body).encode()
        await self.send(a_request(method, path, content))
        status, _, payload = await self.answer()
        return status, json.loads(payload) if payload else None

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer that is no 100 Continue."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split()[1])
        if status == 100:
            return await self.answer()
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return status, headers, body

    async def read(self, size: int = -1) -> bytes:
        return await self._reader.read(size)

    def leave(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def a_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if body and not any(header.lower().startswith(("content-length", "transfer")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
