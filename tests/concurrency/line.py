"""One kept-alive HTTP connection that costs next to nothing, for tests with many of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Line:
    """Asks one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the decoded body."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in answer[1:] if line)
        payload = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return int(answer[0].split()[1]), json.loads(payload) if payload else None


@asynccontextmanager
async def line(port: int) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
