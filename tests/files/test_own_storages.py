"""A server without a storage, and with one of the application's own."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from maniflex import DeclarationError, Model, Server, file
from maniflex.errors import FileNotFound
from maniflex.features.files import forms
from maniflex.storage import FileMeta, MemoryStorage, Reader
from maniflex.testing import client
from tests.kit.files import PNG
from tests.kit.http import data_of, error_of

PART = ("a.png", PNG, "image/png")


class Clip(Model):
    image: str | None = file(default=None)
    film: str | None = file(default=None, upload="presigned")


class Shoebox:
    """All that a storage must have."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, FileMeta]] = {}

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        content = b"".join([chunk async for chunk in chunks])
        kept = FileMeta(meta.filename, meta.content_type, len(content), '"1"')
        self.files[key] = content, kept
        return kept

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        if key not in self.files:
            raise FileNotFound()
        content, meta = self.files[key]
        end = len(content) if length is None else start + length

        async def chunks() -> AsyncIterator[bytes]:
            yield content[start:end]

        return Reader(meta, chunks())

    async def delete(self, key: str) -> None:
        self.files.pop(key, None)

    async def exists(self, key: str) -> bool:
        return key in self.files

    async def url(
        self, key: str, *, ttl: timedelta | None, download: bool = False, filename: str | None = None
    ) -> str:
        return f"https://box.example/{key}"


async def test_stat_and_presigned_uploads_are_optional(sqlite_url: str) -> None:
    storage = Shoebox()
    server = Server(storage=storage)
    server.register(Clip)
    async with client(server, database=sqlite_url) as http:
        clip = data_of(await http.post("/api/clips", files={"image": PART}), 201)
        path = f"/api/clips/{clip['id']}/image"
        assert (await http.get(path)).content == PNG
        assert (await http.head(path)).headers["content-length"] == str(len(PNG))
        assert (await server.files.stat(clip["image"])).size == len(PNG)
        with pytest.raises(FileNotFound):
            await server.files.stat("no/such")
        wish = {"filename": "a.png", "content_type": "image/png"}
        error_of(await http.post("/api/clips/film/upload-url", json=wish), 501, "PRESIGN_UNSUPPORTED")
        assert (await http.delete(f"/api/clips/{clip['id']}")).status_code == 204
        await server.files.sweep()
        assert storage.files == {}


async def test_methods_that_a_storage_lacks_are_named() -> None:
    class Half:
        store = Shoebox.store
        open = Shoebox.open
        delete = Shoebox.delete
        exists = None

    for storage, text in (
        (Half(), "storage: Half lacks exists, url; a storage has store, open, delete, exists, url"),
        (object(), "storage: a object is neither an address nor a storage"),
        ({}, "storage: a dict is neither an address nor a storage"),
    ):
        anything: Any = storage
        with pytest.raises(DeclarationError) as error:
            Server(storage=anything).seal()
        assert text in str(error.value)


class FullBox(Shoebox):
    """One on a disk without room."""

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("storage", [FullBox(), MemoryStorage(max_bytes=4)])
async def test_a_full_storage_is_507_and_the_log_says_why(
    sqlite_url: str, storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(storage=storage)
    server.register(Clip)
    async with client(server, database=sqlite_url) as http:
        for path, name in (("/api/files", "file"), ("/api/clips", "image")):
            answer = await http.post(path, files={name: PART})
            error_of(answer, 507, "STORAGE_FULL")
            assert "disk" not in answer.text
            assert "max_bytes" not in answer.text
        assert "max_bytes is 4" in caplog.text or "the storage raised OSError" in caplog.text
        await server.files.sweep()
        assert (await server.files.desk.rows.page("", 10)) == []


async def test_uploads_that_find_no_room_to_wait_are_507(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forms, "_nameless_file", lambda directory: os.open("/dev/full", os.O_WRONLY))
    server = Server(storage="memory:", upload_memory=1)
    server.register(Clip)
    async with client(server, database=sqlite_url) as http:
        part = ("a.png", PNG + bytes(100_000), "image/png")
        error_of(await http.post("/api/clips", files={"image": part}), 507, "STORAGE_FULL")
        assert "No space left on device" in caplog.text


@pytest.mark.parametrize("models", [(), (Clip,)])
async def test_without_a_storage_the_routes_of_files_say_so(
    sqlite_url: str, models: tuple[type[Model], ...]
) -> None:
    server = Server()
    server.register(*models)
    async with client(server, database=sqlite_url) as http:
        for method, path in (
            ("POST", "/api/files"),
            ("GET", "/api/files/uploads/a.png"),
            ("HEAD", "/api/files/a"),
            ("DELETE", "/api/files/a"),
            ("PUT", "/api/files/a"),
        ):
            answer = await http.request(method, path)
            assert answer.status_code == 501, path
            if method != "HEAD":
                error_of(answer, 501, "NO_STORAGE")
        assert (await server.call("GET", "/api/files/a")).status == 501
        for path in ("/api/filesystem", "/files/a", "/api/other"):
            error_of(await http.get(path), 404, "NOT_FOUND")
        described = (await server.openapi())["paths"]
        assert not any(path.startswith("/api/files") for path in described)


async def test_a_path_of_files_that_is_left_out_or_anothers_is_404(sqlite_url: str) -> None:
    class File(Model):
        name: str = ""

    server = Server()
    server.register(File)
    async with client(server, database=sqlite_url) as http:
        data_of(await http.post("/api/files", json={}), 201)
        error_of(await http.get("/api/files/1/2/3"), 404, "NOT_FOUND")
    async with client(Server(files_routes=False), database=sqlite_url) as http:
        error_of(await http.get("/api/files/1"), 404, "NOT_FOUND")
