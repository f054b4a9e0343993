"""A TCP relay before a server, to take the server away from whoever uses it."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit


class Relay:
    """Cut, it is a server that went away; listening, one that is back; hushed, one that falls silent."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._behind = parts.hostname or "127.0.0.1", parts.port or 5432
        self._parts = parts
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._hanging_up = asyncio.Event()
        self._hanging_up.set()
        self.connections = 0
        self.farewells = 0  # connections that the server ended, after all it said was passed on
        self.accepted = asyncio.Event()

    @property
    def url(self) -> str:
        login = self._parts.netloc.rpartition("@")[0] or "postgres"
        netloc = f"{login}@127.0.0.1:{self._port}"
        return self._parts._replace(netloc=netloc, query="sslmode=disable").geturl()

    @property
    def same_url(self) -> str:
        """The address as it was given, with the place of the relay: for servers other than PostgreSQL."""
        login, at, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{login}{at}127.0.0.1:{self._port}").geturl()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        self._hanging_up.set()
        for writer in list(self._writers):
            writer.transport.abort()

    def hush(self) -> None:
        """Pass nothing on any more, in either direction, and close nothing."""
        self._flowing.clear()

    def speak(self) -> None:
        """Pass on what was held back, and all that follows."""
        self._flowing.set()

    def stay_on_the_line(self) -> None:
        """Pass on what the server says last, and not that it hangs up."""
        self._hanging_up.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.accepted.set()
        behind_reader, behind_writer = await asyncio.open_connection(*self._behind)
        self._writers |= {writer, behind_writer}
        await asyncio.gather(self._pump(reader, behind_writer), self._pump_answers(behind_reader, writer))

    async def _pump_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._copy(reader, writer)
        self.farewells += 1
        await self._hanging_up.wait()
        self._hang_up(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._copy(reader, writer)
        self._hang_up(writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()

    def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._writers.discard(writer)
