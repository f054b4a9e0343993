"""Time for uploads and downloads is measured by progress, on real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maniflex.http import asgi, protocol
from maniflex.pipeline import body as upload_progress
from maniflex.storage import MemoryStorage
from tests.file_routes.test_streams import END, FILMS, SlowReader, a_part
from tests.file_routes.world import a_server, assert_nothing_stored, stored_keys
from tests.kit.sockets import PROTOCOLS, connected, listening
from tests.kit.waiting import PATIENCE

PACE = 0.05  # seconds between two pieces of a client that is slow and moves
HEAD = (
    b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for a thousand bytes, as it is a minute for 64 KB."""
    monkeypatch.setattr(protocol, "UPLOAD_TIMEOUT", 2.0)
    monkeypatch.setattr(protocol, "PROGRESS", 1_000)
    monkeypatch.setattr(upload_progress, "WITHIN", 0.5)
    monkeypatch.setattr(upload_progress, "PROGRESS", 1_000)


def a_film_server(tmp_path: Path, storage: Any = "memory:") -> Any:
    return a_server(
        storage,
        database=f"sqlite:///{tmp_path}/test.db",
        query_timeout=0.3,
        head_timeout=0.5,
        body_timeout=0.5,
    )


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["video", "notes"])
@pytest.mark.parametrize("http", PROTOCOLS)
async def test_an_upload_that_moves_is_not_cut(tmp_path: Path, name: str, http: str) -> None:
    server = a_film_server(tmp_path)
    async with listening(server, PROTOCOLS[http]) as port, connected(port) as connection:
        await connection.send(HEAD % FILMS.encode() + chunk(a_part("title", b"a")))
        await connection.send(chunk(a_part(name, b"", "a.mp4")[:-2]))
        for _ in range(20):  # a second in all: longer than a body of JSON or a query may take
            await asyncio.sleep(PACE)
            await connection.send(chunk(b"v" * 1_000))
        await connection.send(chunk(b"\r\n" + END) + b"0\r\n\r\n")
        status, _, body = await connection.answer()
        assert status == 201, body
        assert len(await stored_keys(server)) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("path", [FILMS, "/api/files"])
@pytest.mark.parametrize("http", PROTOCOLS)
async def test_an_upload_below_the_pace_is_let_go(tmp_path: Path, path: str, http: str) -> None:
    server = a_film_server(tmp_path)
    async with listening(server, PROTOCOLS[http]) as port, connected(port) as connection:
        name = "video" if path == FILMS else "file"
        await connection.send(HEAD % path.encode() + chunk(a_part(name, b"v" * 2_000, "a.mp4")[:-2]))

        async def drip() -> None:
            while True:
                await asyncio.sleep(PACE)
                await connection.send(chunk(b"v"))

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(PATIENCE):
            status, _, _ = await connection.answer()
        dripping.cancel()
        await asyncio.wait([dripping])
        assert status == 408
        await assert_nothing_stored(server)


@pytest.mark.usefixtures("impatient")
async def test_a_slow_storage_is_not_the_clients_fault(tmp_path: Path) -> None:
    storage = SlowReader()
    server = a_film_server(tmp_path, storage)
    async with listening(server) as port, connected(port) as connection:
        content = a_part("title", b"a") + a_part("video", b"v" * 1_000_000, "a.mp4") + END
        await connection.send(HEAD % FILMS.encode() + chunk(content) + b"0\r\n\r\n")
        await storage.began.wait()
        await asyncio.sleep(1)  # twice the time for a thousand bytes
        storage.go_on.set()
        status, _, body = await connection.answer()
        assert status == 201, body


@pytest.mark.usefixtures("impatient")
async def test_a_body_of_json_keeps_its_time(tmp_path: Path) -> None:
    server = a_server(
        database=f"sqlite:///{tmp_path}/test.db", query_timeout=0, head_timeout=0.5, body_timeout=0.5
    )
    async with listening(server) as port, connected(port) as connection:
        await connection.send(
            f"POST {FILMS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode() + b'{"title": "'
        )
        async with asyncio.timeout(PATIENCE):
            while True:  # a byte now and then does not help
                try:
                    await connection.send(b"x")
                    async with asyncio.timeout(PACE):
                        assert await connection.read() == b""
                    break
                except TimeoutError:
                    continue
                except ConnectionError:  # the byte came when the server had closed the connection
                    break


async def test_a_client_that_stops_reading_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "STALLED", 0.2)
    closed = asyncio.Event()

    class Noting(MemoryStorage):
        async def open(self, key: str, **more: Any) -> Any:
            reader = await super().open(key, **more)

            async def close() -> None:
                closed.set()

            reader._close = close
            return reader

    server = a_film_server(tmp_path, Noting())
    async with listening(server) as port, connected(port) as connection:
        content = a_part("file", b"v" * 20_000_000, "a.mp4") + END
        await connection.send(HEAD % b"/api/files" + chunk(content) + b"0\r\n\r\n")
        _, _, body = await connection.answer()
        key = body.split(b'"key":"')[1].split(b'"')[0]
        await connection.send(b"GET /api/files/%b HTTP/1.1\r\nHost: x\r\n\r\n" % key)
        async with asyncio.timeout(10):
            await closed.wait()


async def test_a_break_of_the_storage_breaks_the_answer_off(tmp_path: Path) -> None:
    class Breaking(MemoryStorage):
        async def open(self, key: str, **more: Any) -> Any:
            reader = await super().open(key, **more)
            chunks = reader._chunks

            async def some() -> Any:
                yield await anext(chunks)
                raise OSError("gone")

            reader._chunks = some()
            return reader

    server = a_film_server(tmp_path, Breaking())
    async with listening(server) as port, connected(port) as connection:
        content = a_part("file", b"v" * 3_000_000, "a.mp4") + END
        await connection.send(HEAD % b"/api/files" + chunk(content) + b"0\r\n\r\n")
        _, _, body = await connection.answer()
        key = body.split(b'"key":"')[1].split(b'"')[0]
        await connection.send(b"GET /api/files/%b HTTP/1.1\r\nHost: x\r\n\r\n" % key)
        answer = await connection.read()
        while piece := await connection.read(1_000_000):
            answer += piece
        head, _, content = answer.partition(b"\r\n\r\n")
        assert b"content-length: 3000000" in head
        assert len(content) < 3_000_000
