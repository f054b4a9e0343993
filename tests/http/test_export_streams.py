"""Exports while they are sent: how many at once, and how each of them ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, ModelOptions, Next, Operation, Response, Server, field
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.features import export
from maniflex.http import asgi
from maniflex.http.asgi import Aborted
from maniflex.testing import client
from tests.kit.http import error_of
from tests.kit.internals import adapter_of
from tests.kit.processes import serve_process
from tests.kit.sockets import a_request, connected, listening
from tests.kit.waiting import PATIENCE, eventually

ROWS = 1_000  # several batches
MANY_ROWS = 10_000  # several pieces of a workbook


class Entry(Model, export=True, table="entries"):
    name: str = field(filterable=True, sortable=True)
    price: Decimal = Decimal("1.5")


class Download:
    """A client of one export that takes one message at a time, and only when it is told to."""

    def __init__(self, server: Server, query: str = "") -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._may_send = asyncio.Semaphore(0)
        self._gone = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/entries/export",
            "query_string": query.encode(),
            "headers": [],
        }
        self.task = asyncio.create_task(server(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._may_send.acquire()
        self._messages.put_nowait(message)

    async def next(self) -> Any:
        self._may_send.release()
        return await asyncio.wait_for(self._messages.get(), 10)

    async def begin(self) -> int:
        """Take the status and the first rows, and then nothing more."""
        status: int = (await self.next())["status"]
        await self.next()
        return status

    async def finish(self) -> bool:
        """Take the rest; whether it ended as a whole answer does."""
        for _ in range(100_000):
            self._may_send.release()
        await asyncio.wait((self.task,), timeout=20)
        ends = [not m.get("more_body") for m in self._messages._queue]  # type: ignore[attr-defined]  # all of them
        return bool(ends) and ends[-1]

    def go_away(self) -> None:
        self._gone.set()


@asynccontextmanager
async def entries(
    database: str, rows: int = ROWS, max_exports: int = 1
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = Server(max_exports=max_exports)
    server.register(Entry)
    async with client(server, database=database) as http:
        await fill(server, rows)
        yield server, http


async def fill(server: Server, rows: int) -> None:
    """Entries with the names 000000, 000001, …"""
    if server.config.database.startswith("postgres"):
        numbers = "SELECT i FROM generate_series(0, CAST(? AS integer) - 1) AS i"
        values = "i, to_char(i, 'FM000000'), 1.5, now(), now()"
    else:
        numbers = (
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) SELECT i FROM n"
        )
        now = "'2026-01-01T00:00:00.000000Z'"
        values = f"i, printf('%06d', i), '1.5', {now}, {now}"
    columns = "id, name, price, created_at, updated_at"
    await server.raw_exec(
        f"INSERT INTO entries ({columns}) SELECT {values} FROM ({numbers}) AS numbers", rows
    )


async def is_free(http: httpx.AsyncClient) -> bool:
    response = await http.get("/api/entries/export?filter=name:eq:000000")
    assert response.status_code in (200, 503)
    return response.status_code == 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that finds no free place does not wait for one."""
    monkeypatch.setattr(export, "WAIT_FOR_PLACE", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_one_more_export_than_allowed_is_told_to_come_back(database_url: str) -> None:
    async with entries(database_url, max_exports=2) as (server, http):
        first, second = Download(server), Download(server)
        assert [await first.begin(), await second.begin()] == [200, 200]

        response = await http.get("/api/entries/export")
        error = error_of(response, 503, "EXPORT_BUSY")
        assert error["retryable"] is True
        assert int(response.headers["retry-after"]) > 0

        assert await first.finish()
        assert await is_free(http)
        assert await second.finish()


@pytest.mark.usefixtures("impatient")
async def test_no_burst_gets_more_places_than_there_are(database_url: str) -> None:
    async with entries(database_url, max_exports=2) as (server, http):
        burst = [Download(server) for _ in range(8)]
        statuses = await asyncio.gather(*(download.begin() for download in burst))
        assert sorted(statuses) == [200, 200, *[503] * 6]
        served = [download for download, status in zip(burst, statuses, strict=True) if status == 200]
        assert [await download.finish() for download in served] == [True, True]
        assert await is_free(http)


async def test_other_requests_are_served_beside_an_export(database_url: str) -> None:
    async with entries(database_url) as (server, http):
        download = Download(server)
        await download.begin()
        assert (await http.post("/api/entries", json={"name": "more"})).status_code == 201
        assert (await http.get("/api/entries")).json()["meta"]["total"] == ROWS + 1
        assert await download.finish()


async def test_an_export_is_of_one_moment(database_url: str) -> None:
    async with entries(database_url) as (server, _):
        download = Download(server, "select=name&sort=name")
        await download.begin()
        await server.raw_exec("UPDATE entries SET name = 'changed'")
        await server.raw_exec("DELETE FROM entries WHERE price < 1")
        assert await download.finish()
        rest = b"".join(m["body"] for m in download._messages._queue)  # type: ignore[attr-defined]  # all of them
        assert b"changed" not in rest
        assert rest.endswith(b"%06d\r\n" % (ROWS - 1))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("query", ["", "format=xlsx"])
async def test_a_client_that_goes_away_frees_its_place(database_url: str, query: str) -> None:
    async with entries(database_url, MANY_ROWS) as (server, http):
        download = Download(server, query)
        assert await download.begin() == 200
        assert not await is_free(http)
        download.go_away()
        await asyncio.wait_for(download.task, PATIENCE)
        assert await is_free(http)


async def test_a_cancelled_export_frees_its_place(database_url: str) -> None:
    async with entries(database_url) as (server, http):
        download = Download(server)
        await download.begin()
        download.task.cancel()
        await asyncio.wait((download.task,), timeout=10)
        assert download.task.cancelled()
        assert await is_free(http)


async def test_a_client_that_takes_nothing_is_left(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "STALLED", 0.05)
    async with entries(database_url) as (server, http):
        download = Download(server)
        await download.begin()
        with pytest.raises(Aborted):
            await asyncio.wait_for(download.task, PATIENCE)
        assert await is_free(http)


# -- clients that read slowly


def taken_by(download: Download) -> bytes:
    return b"".join(m.get("body", b"") for m in download._messages._queue)  # type: ignore[attr-defined]  # all of them


async def begin_taking(download: Download) -> bytes:
    """Take the status and the first rows, and then nothing more; the rows."""
    assert (await download.next())["status"] == 200
    first: bytes = (await download.next())["body"]
    return first


@pytest.mark.parametrize("in_memory", [1024 * 1024, 1_000])
@pytest.mark.parametrize("query", ["sort=name", "sort=name&format=jsonl"])
async def test_clients_that_read_slowly_hold_no_place_and_get_their_whole_file(
    database_url: str, monkeypatch: pytest.MonkeyPatch, query: str, in_memory: int
) -> None:
    monkeypatch.setattr(export, "_IN_MEMORY", in_memory)
    async with entries(database_url, MANY_ROWS, max_exports=2) as (server, http):
        slow = [Download(server, query) for _ in range(2)]
        first = [await begin_taking(download) for download in slow]

        answer = await http.get(f"/api/entries/export?{query}")
        assert answer.status_code == 200
        await server.raw_exec("UPDATE entries SET name = 'changed'")

        assert [await download.finish() for download in slow] == [True, True]
        files = [begun + taken_by(download) for begun, download in zip(first, slow, strict=True)]
        assert files == [answer.content] * 2


async def test_after_a_while_a_slow_client_holds_no_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SPOOL_AFTER", 0.05)
    async with entries(postgres_url, MANY_ROWS) as (server, _):
        download = Download(server)
        await download.begin()
        adapter = adapter_of(server)
        assert isinstance(adapter, PostgresAdapter)
        await eventually(lambda: adapter.connections()["busy"] == 0, "a pool that nobody uses")
        assert await download.finish()


async def test_the_slowest_client_is_left_when_too_many_files_wait(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SPOOLS_PER_PLACE", 1)
    async with entries(sqlite_url, MANY_ROWS) as (server, http):
        slowest, slow = Download(server), Download(server)
        await slowest.begin()
        await slow.begin()
        for _ in range(5):
            await slow.next()
        monkeypatch.setattr(export, "FAIR_RATE", 10**12)
        assert await is_free(http)
        assert await slow.finish()
        assert not await slowest.finish()
        with pytest.raises(Aborted):
            slowest.task.result()


async def test_a_failure_ahead_of_a_slow_client_breaks_its_answer_off(database_url: str) -> None:
    async with entries(database_url, max_exports=1) as (server, http):
        await break_the_last(server)
        download = Download(server, "sort=name")
        await download.begin()
        assert await is_free(http)
        assert not await download.finish()
        with pytest.raises(Aborted):
            download.task.result()


async def test_a_client_that_leaves_its_file_behind_leaves_nothing_open(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_IN_MEMORY", 1_000)
    async with entries(sqlite_url, MANY_ROWS) as (server, http):
        download = Download(server)
        await download.begin()
        assert await is_free(http)
        before = set(os.listdir("/proc/self/fd"))
        download.go_away()
        await asyncio.wait_for(download.task, PATIENCE)
        assert set(os.listdir("/proc/self/fd")) < before
        assert await is_free(http)


async def break_the_last(server: Server) -> None:
    """Make the last row one that cannot be read."""
    bad = "'NaN'" if server.config.database.startswith("postgres") else "'not a number'"
    await server.raw_exec(f"UPDATE entries SET price = {bad} WHERE name = '{ROWS - 1:06}'")


async def test_a_failure_on_the_way_breaks_the_answer_off_and_is_logged_once(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with entries(database_url) as (server, http):
        await break_the_last(server)
        download = Download(server, "sort=name")
        assert await download.begin() == 200
        with caplog.at_level(logging.ERROR):
            assert not await download.finish()
        with pytest.raises(Aborted):
            download.task.result()
        assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
        assert await is_free(http)


async def test_a_failure_before_the_first_byte_is_a_plain_500(database_url: str) -> None:
    async with entries(database_url) as (server, http):
        await break_the_last(server)
        for query in (
            f"filter=name:eq:{ROWS - 1:06}",
            "format=xlsx",
        ):  # a workbook is whole before it is sent
            error_of(await http.get(f"/api/entries/export?{query}"), 500, "PANIC")
        assert await is_free(http)


async def test_rows_that_come_in_after_the_count_do_not_pass_the_cap(database_url: str) -> None:
    server = Server()
    server.register(Entry, ModelOptions(max_export_rows=3))

    @server.pipeline.db.middleware(operations=[Operation.EXPORT], at="after")
    async def one_more(ctx: Context, next: Next) -> None:
        await ctx.db(Entry).create(name="late")
        await next()

    async with client(server, database=database_url) as http:
        for n in range(3):
            await server.db(Entry).create(name=str(n))
        error_of(await http.get("/api/entries/export"), 413, "EXPORT_TOO_LARGE")


async def test_an_answer_that_is_replaced_leaves_nothing_open(database_url: str) -> None:
    server = Server(max_exports=1)
    server.register(Entry)

    @server.pipeline.response.middleware(operations=[Operation.EXPORT], at="after")
    async def instead(ctx: Context, next: Next) -> None:
        if ctx.query_param("break"):
            raise ValueError("not today")
        await next()

    async with client(server, database=database_url) as http:
        for _ in range(5):
            error_of(await http.get("/api/entries/export?break=1"), 500, "PANIC")
        assert (await http.get("/api/entries/export")).status_code == 200


async def test_no_temporary_file_is_left_behind(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    here = tmp_path / "temporary"
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    async with entries(database_url, MANY_ROWS) as (server, http):
        assert (await http.get("/api/entries/export?format=xlsx")).status_code == 200
        assert [path for path in here.iterdir() if "export" in path.name] == []
        download = Download(server, "format=xlsx")
        await download.begin()
        assert [path for path in here.iterdir() if "export" in path.name] != []
        download.go_away()
        await asyncio.wait_for(download.task, PATIENCE)
        assert [path for path in here.iterdir() if "export" in path.name] == []


# -- over a socket

APP = """
from decimal import Decimal
from maniflex import Config, Model, Server, field

class Entry(Model, export=True, table="entries"):
    name: str = field(filterable=True, sortable=True)
    price: Decimal = Decimal("1.5")

server = Server(Config.from_env())
server.register(Entry)
"""


async def test_over_a_socket_a_broken_export_never_looks_complete(database_url: str, tmp_path: Path) -> None:
    async with entries(database_url) as (server, _):
        await break_the_last(server)
    (tmp_path / "app.py").write_text(APP)
    environment = {"DB_WRITE_URL": database_url, "LOG_JSON": "true", "MAX_EXPORTS": "1"}
    with serve_process(tmp_path, **environment) as served:
        async with httpx.AsyncClient(base_url=served.url) as http:
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                await http.get("/api/entries/export?sort=name")
            good = await http.get("/api/entries/export?sort=name&filter=name:eq:000001&select=name")
            assert good.text == "name\r\n000001\r\n"
        errors = [line for line in served.lines if line["level"] == "error"]
        assert len(errors) == 1
        assert errors[0]["request_id"]


async def test_over_a_socket_a_client_that_hangs_up_frees_its_place(
    database_url: str, tmp_path: Path
) -> None:
    async with entries(database_url, rows=100_000):
        pass
    (tmp_path / "app.py").write_text(APP)
    with serve_process(tmp_path, DB_WRITE_URL=database_url, MAX_EXPORTS="1") as served:
        async with httpx.AsyncClient(base_url=served.url) as http:
            for _ in range(3):
                async with http.stream("GET", "/api/entries/export") as response:
                    assert response.status_code == 200
                    await anext(response.aiter_raw())
                await eventually(lambda: is_free(http), "a free place")


async def test_a_client_that_takes_a_large_piece_slowly_is_not_cut_off(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "STALLED", 0.5)
    server = Server(sqlite_url)
    whole = b"x" * (8 * asgi.PIECE + 1)

    @server.action("GET", "/large")
    async def large(ctx: Context) -> Response:
        async def made() -> AsyncGenerator[bytes, None]:
            yield whole

        return Response(stream=made())

    taken: list[bytes] = []

    async def send(message: Any) -> None:
        body = message.get("body", b"")
        await asyncio.wait([asyncio.create_task(never.wait())], timeout=0.2 * len(body) / asgi.PIECE)
        taken.append(body)

    never = asyncio.Event()
    scope = {"type": "http", "method": "GET", "path": "/api/large", "query_string": b"", "headers": []}

    async def receive() -> Any:
        await never.wait()

    async with server.lifespan():
        await server(scope, receive, send)
    assert b"".join(taken) == whole


def endless_server(sqlite_url: str) -> Server:
    server = Server(sqlite_url)

    @server.action("GET", "/endless")
    async def endless(ctx: Context) -> Response:
        async def made() -> AsyncGenerator[bytes, None]:
            while True:
                yield b"x" * 500_000

        return Response(stream=made())

    return server


async def test_a_stream_that_waits_for_nothing_ends_when_its_client_leaves(sqlite_url: str) -> None:
    async with listening(endless_server(sqlite_url)) as port, asyncio.timeout(20):
        async with connected(port) as client:
            await client.send(a_request("GET", "/api/endless"))
            assert await client.read(100_000)
        async with connected(port) as other:
            await other.send(a_request("GET", "/live"))
            assert (await other.answer())[0] == 200


@pytest.mark.long
async def test_a_client_that_reads_steadily_is_not_cut_off_by_what_the_kernel_keeps(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "STALLED", 3.0)
    loop = asyncio.get_running_loop()
    async with listening(endless_server(sqlite_url)) as port, asyncio.timeout(90):
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.setblocking(False)
            await loop.sock_sendall(slow, a_request("GET", "/api/endless"))
            for _ in range(300):  # about 200 KB a second for half a minute
                assert await loop.sock_recv(slow, 20_000)
                await asyncio.wait([loop.create_future()], timeout=0.1)
