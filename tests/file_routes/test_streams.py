"""Files that go to the storage while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from maniflex import Context, Next
from maniflex.middleware import idempotency
from maniflex.storage import MemoryStorage
from tests.file_routes.world import (
    PNG,
    Film,
    a_server,
    assert_nothing_stored,
    rows_of_files,
    site,
    stored_keys,
)
from tests.kit.asgi import Call as Request
from tests.kit.asgi import scope_of
from tests.kit.http import created, data_of, error_of, offenders

FILMS = "/api/films"
FORM = {"content-type": "multipart/form-data; boundary=x"}


def a_part(name: str, content: bytes, filename: str = "") -> bytes:
    file = f'; filename="{filename}"\r\nContent-Type: video/mp4' if filename else ""
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"


END = b"--x--\r\n"


async def test_parts_are_stored_as_they_come(database_url: str, storage: str) -> None:
    server = a_server(storage)
    seen: list[Any] = []

    @server.pipeline.validate.middleware(models=[Film], operations="create")
    async def look(ctx: Context, next: Next) -> None:
        upload = ctx.files["video"]
        seen.append((upload.key, upload.content_type, upload.filename))
        await next()

    async with site(server, database_url) as http:
        content = b"v" * 300_000
        film = data_of(
            await http.post(FILMS, data={"title": "a"}, files={"video": ("a.mp4", content, "video/mp4")}), 201
        )
        assert seen == [(film["video"], "video/mp4", "a.mp4")]
        assert (await http.get(f"{FILMS}/{film['id']}/video")).content == content
        assert await stored_keys(server) == {film["video"]}


async def test_what_fails_behind_the_stream_leaves_nothing(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        video = ("video", ("a.mp4", b"v" * 100_000, "video/mp4"))
        offenders(await http.post(FILMS, files=[video]))  # no title
        broken = a_part("video", b"v" * 100_000, "a.mp4") + a_part("title", b"a")
        error_of(await http.post(FILMS, content=broken, headers=FORM), 400, "MULTIPART_ERROR")
        error_of(await http.patch(f"{FILMS}/none", files=[video]), 404, "NOT_FOUND")
        await assert_nothing_stored(server)


async def test_a_record_out_of_reach_takes_no_byte(database_url: str) -> None:
    storage = MemoryStorage()
    server = a_server(storage)
    async with site(server, database_url) as http:
        await http.patch(f"{FILMS}/none", files={"video": ("a.mp4", b"v", "video/mp4")})
        assert await rows_of_files(server) == set()


class SlowReader(MemoryStorage):
    """Takes one chunk, then waits to be told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

    async def store(self, key: str, chunks: Any, meta: Any) -> Any:
        async def slowly() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                self.began.set()
                yield chunk
                await self.go_on.wait()

        return await super().store(key, slowly(), meta)


class Upload:
    """A request whose body is handed over piece by piece."""

    def __init__(self, server: Any, path: str = FILMS, method: str = "POST") -> None:
        self.taken = 0
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = 0
        self._ends = asyncio.Event()
        headers = [(name.encode(), value.encode()) for name, value in FORM.items()]
        scope = scope_of(Request(method, path.encode(), headers=tuple(headers)))
        self.task = asyncio.create_task(server(scope, self._receive, self._send))

    def give(self, *pieces: bytes | None) -> None:
        for piece in pieces:
            self._pieces.put_nowait(piece)

    async def _receive(self) -> dict[str, Any]:
        piece = await self._pieces.get()
        self.taken += 1
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": not piece.endswith(END)}

    async def _send(self, message: Any) -> None:
        self.status = self.status or message.get("status", 0)


async def test_a_slow_storage_makes_the_client_wait(sqlite_url: str) -> None:
    storage = SlowReader()
    server = a_server(storage)
    async with site(server, sqlite_url):
        upload = Upload(server)
        upload.give(a_part("title", b"a"), a_part("video", b"v" * 1000, "a.mp4")[:-2])
        upload.give(*[b"v" * 1000] * 20, b"\r\n" + END)
        await storage.began.wait()
        await asyncio.sleep(0)
        assert upload.taken < 6
        storage.go_on.set()
        await upload.task
        assert upload.status == 201


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url):
        for path in (FILMS, "/api/files", "/api/albums"):
            name = {"/api/files": "file", FILMS: "video", "/api/albums": "scans"}[path]
            upload = Upload(server, path)
            upload.give(
                a_part("title", b"a"), a_part(name, b"v" * 200_000, "a.mp4")[:-2], b"v" * 2_000_000, None
            )
            await upload.task
            assert upload.status == 0
        await assert_nothing_stored(server)


async def test_a_request_that_is_cancelled_leaves_nothing(database_url: str) -> None:
    storage = SlowReader()
    server = a_server(storage)
    async with site(server, database_url):
        upload = Upload(server)
        upload.give(a_part("title", b"a"), a_part("video", b"v" * 200_000, "a.mp4")[:-2])
        await storage.began.wait()
        upload.task.cancel()
        await asyncio.wait([upload.task])
        await assert_nothing_stored(server)


async def test_a_form_sent_twice_with_one_key_is_one_record(database_url: str) -> None:
    server = a_server()
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with site(server, database_url) as http:
        key = {"idempotency-key": "k1"}
        for path, name in ((FILMS, "video"), ("/api/albums", "cover")):
            kind = "video/mp4" if name == "video" else "image/png"
            answers = [
                await http.post(path, data={"title": "a"}, files={name: ("a", PNG, kind)}, headers=key)
                for _ in range(2)
            ]
            assert data_of(answers[0], 201) == data_of(answers[1], 201)
            other = await http.post(
                path, data={"title": "a"}, files={name: ("a", PNG + b"!", kind)}, headers=key
            )
            assert other.status_code == 422, other.text
            assert (await http.get(path)).json()["meta"]["total"] == 1
        assert len(await stored_keys(server)) == 2
        assert len(await rows_of_files(server)) == 2


async def test_json_still_works_beside_forms(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        film = await created(http, FILMS, title="a")
        assert data_of(await http.patch(f"{FILMS}/{film['id']}", json={"title": "b"}))["title"] == "b"
        response = await http.post(
            FILMS, content=b"a=1", headers={"content-type": "application/x-www-form-urlencoded"}
        )
        error_of(response, 415, "UNSUPPORTED_MEDIA_TYPE")
