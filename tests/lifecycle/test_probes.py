"""What an orchestrator asks, and what it must not learn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from maniflex import Config, Model, Server
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.waiting import eventually

LIVE = {"status": "ok"}


class Wire:
    """A line to a database that can be cut and mended."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        login = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._parts.hostname, self._parts.port or 5432
        far_reader, far_writer = await asyncio.open_connection(host, port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    wire = Wire(url)
    await wire.mend()
    try:
        yield wire
    finally:
        await wire.cut()


async def ask(http: httpx.AsyncClient) -> dict[str, int]:
    return {path: (await http.get(path)).status_code for path in ("/live", "/ready", "/health")}


async def test_a_running_server_is_live_ready_and_healthy(database_url: str) -> None:
    server = Server(path_prefix="/v2")
    async with client(server, database=database_url) as http:
        assert await ask(http) == {"/live": 200, "/ready": 200, "/health": 200}
        assert (await http.get("/live")).json() == LIVE
        assert (await http.get("/health")).json() == LIVE
        assert (await http.head("/ready")).status_code == 200
        assert (await http.post("/health")).status_code == 405
        assert (await http.get("/v2/health")).status_code == 404


async def test_readiness_follows_the_life_of_the_server_and_liveness_does_not(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    seen: list[dict[str, int]] = []
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:

        @server.on_start
        async def while_starting() -> None:
            seen.append(await ask(http))

        @server.on_shutdown
        async def while_stopping() -> None:
            seen.append(await ask(http))

        async with server.lifespan():
            seen.append(await ask(http))
            server.begin_shutdown()
            seen.append(await ask(http))
        seen.append(await ask(http))

    ready = [answer["/ready"] for answer in seen]
    assert ready == [503, 200, 503, 503, 503]
    assert {answer["/live"] for answer in seen} == {200}
    assert {answer["/health"] for answer in seen} == {200}


async def test_a_database_that_is_gone_makes_it_unready_and_unhealthy_but_not_dead(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire_to(postgres_url) as wire:
        server = Server(Config(health_check_db=True, health_timeout=timedelta(seconds=5)))
        server.register(Note)
        async with client(server, database=wire.url) as http:
            assert await ask(http) == {"/live": 200, "/ready": 200, "/health": 200}

            await wire.cut()
            assert await ask(http) == {"/live": 200, "/ready": 503, "/health": 503}
            unhealthy = (await http.get("/health")).json()
            assert unhealthy == {"status": "unavailable", "database": "unavailable"}
            refused = await http.get("/api/notes")
            assert refused.status_code == 503
            for private in ("127.0.0.1", str(wire.port), "asyncpg", "onnect call", "postgres"):
                assert private not in refused.text

            await wire.mend()
            assert await ask(http) == {"/live": 200, "/ready": 200, "/health": 200}
            assert (await http.get("/api/notes")).status_code == 200
    assert "health check of postgresql:" in caplog.text


async def test_health_without_the_check_does_not_ask_the_database(postgres_url: str) -> None:
    async with wire_to(postgres_url) as wire, client(Server(), database=wire.url) as http:
        await wire.cut()
        assert (await http.get("/health")).json() == LIVE
        await wire.mend()


async def test_health_covers_the_databases_of_single_models(postgres_url: str) -> None:
    async with wire_to(postgres_url) as wire:

        class Elsewhere(Model, database=wire.url):
            text: str

        server = Server(Config(health_check_db=True))
        server.register(Elsewhere)
        async with client(server) as http:
            assert (await http.get("/health")).status_code == 200
            await wire.cut()
            assert (await http.get("/health")).status_code == 503
            await wire.mend()


async def is_healthy(http: httpx.AsyncClient) -> bool:
    return (await http.get("/health")).status_code == 200


async def test_a_database_that_does_not_answer_in_time_counts_as_gone(postgres_url: str) -> None:
    held = asyncio.Event()
    server = Server(Config(health_check_db=True, health_timeout=timedelta(milliseconds=50), pool_size=1))

    async with client(server, database=postgres_url) as http:

        async def hold() -> None:
            async with server.transaction():
                held.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold())
        await held.wait()  # the only connection is taken
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/live")).status_code == 200
        holder.cancel()
        with suppress(asyncio.CancelledError):
            await holder
        await eventually(lambda: is_healthy(http), "the connection is free")
