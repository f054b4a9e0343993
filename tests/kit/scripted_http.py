"""A real HTTP server on loopback that answers what it is told to, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Answer = tuple[int, dict[str, str], bytes]


@dataclass(slots=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class ScriptedHttp:
    """Gives its answers one after another, the last for ever; an answer of None leaves the line silent."""

    answers: Sequence[Answer | bytes | None]
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            method, target, _ = first.split(" ", 2)
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append(Asked(method, target, headers, body))
            answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
            if answer is None:
                await reader.read()  # until the other side leaves
            else:
                writer.write(answer if isinstance(answer, bytes) else _bytes(*answer))
                await writer.drain()
        writer.close()


def _bytes(status: int, headers: dict[str, str], content: bytes) -> bytes:
    fields = {"Content-Length": str(len(content)), "Connection": "close", **headers}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


@asynccontextmanager
async def scripted(*answers: Answer | bytes | None) -> AsyncIterator[ScriptedHttp]:
    """A server with these answers."""
    script = ScriptedHttp(answers or ((200, {}, b"{}"),))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    async with server:
        yield script
