"""`server.files.store`: what is stored, what is refused, and what is left behind."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex import Model, Server, field
from maniflex.encryption import MemoryKeyProvider, envelope
from maniflex.errors import (
    FileExists,
    FileNotFound,
    FileTooLarge,
    FileTypeNotAllowed,
    NoStorage,
    StorageError,
    TransactionError,
)
from maniflex.files.owner import NOBODY
from maniflex.files.store import FileState
from maniflex.model.field import FileRules
from maniflex.storage import FileMeta, LocalStorage, MemoryStorage
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.files import PDF, PNG, Album, an_archive, in_pieces


async def test_what_is_known_of_a_stored_file(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "photo one.png"
    path.write_bytes(PNG)
    async with an_archive(database_url) as archive:
        for data in (PNG, path, in_pieces(PNG[:3], PNG[3:])):
            stored_file = await archive.files.store(data, filename="" if data is path else "photo one.png")

            assert stored_file.key.startswith("uploads/")
            assert stored_file.key.endswith("/photo_one.png")
            assert stored_file.filename == "photo one.png"
            assert (stored_file.content_type, stored_file.size) == ("image/png", len(PNG))
            assert stored_file.sha256 == hashlib.sha256(PNG).hexdigest()
            assert stored_file.state is FileState.STORED
            assert await archive.read(stored_file.key) == PNG
            assert (await archive.files.stat(stored_file.key)).size == len(PNG)


async def test_the_row_is_committed_before_the_first_byte(database_url: str) -> None:
    seen: list[Any] = []

    async def chunks() -> AsyncIterator[bytes]:
        seen.append(await archive.server.raw_query("SELECT key, state FROM stored_file"))
        seen.append(await archive.objects())
        yield PNG

    async with an_archive(database_url) as archive:
        stored_file = await archive.files.store(chunks(), filename="a.png", content_type="image/png")

    assert seen == [[{"key": stored_file.key, "state": "pending"}], set()]


@pytest.mark.parametrize(
    ("data", "content_type", "rules", "error"),
    [
        (bytes(101), "image/png", FileRules(max_size=100), FileTooLarge),
        (PNG, "text/html", FileRules(accept=("image/*",)), FileTypeNotAllowed),
        (PDF, None, FileRules(accept=("image/*",)), FileTypeNotAllowed),
        (b"<html>", "image/png", FileRules(sniff=True), FileTypeNotAllowed),
        (b"", "image/png", FileRules(sniff=True), FileTypeNotAllowed),
    ],
)
async def test_what_breaks_the_rules_leaves_nothing(
    database_url: str, data: bytes, content_type: str | None, rules: FileRules, error: type[Exception]
) -> None:
    async with an_archive(database_url) as archive:
        with pytest.raises(error):
            await archive.files.desk.store(
                in_pieces(data), filename="a", content_type=content_type, owner=NOBODY, rules=rules
            )

        assert await archive.swept() == set()
        assert await archive.server.raw_query("SELECT key FROM stored_file") == []


@pytest.mark.parametrize(
    ("data", "content_type", "rules"),
    [
        (bytes(100), "image/png", FileRules(max_size=100)),
        (PNG, "Image/PNG; charset=x", FileRules(accept=("image/*",), sniff=True)),
        (b"a,b\n1,2\n", "text/csv", FileRules(accept=("text/csv",), sniff=True)),
        (b'{"a": 1}', "application/json", FileRules(sniff=True)),
        (b"PK\x03\x04", "application/vnd.ms-excel", FileRules(sniff=True)),
        (b"<svg/>", "image/svg+xml", FileRules(sniff=True)),
        (PNG, None, FileRules(accept=("image/png",))),
        (PNG, "application/octet-stream", FileRules(accept=("image/png",))),
        (PNG, "image/png\r\nX-Evil: 1", FileRules(accept=("image/png",))),
        (PNG, "pictures", FileRules(accept=("image/png",))),
    ],
)
async def test_what_keeps_the_rules_is_stored(
    sqlite_url: str, data: bytes, content_type: str | None, rules: FileRules
) -> None:
    async with an_archive(sqlite_url) as archive:
        stored_file = await archive.files.desk.store(
            in_pieces(data), filename="a", content_type=content_type, owner=NOBODY, rules=rules
        )

        assert await archive.read(stored_file.key) == data


async def test_a_file_is_not_stored_inside_a_transaction(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        async with archive.server.transaction():
            with pytest.raises(TransactionError) as refusal:
                await archive.put()

        assert refusal.value.code == "TX_OPEN"
        assert await archive.objects() == set()


class Failing(MemoryStorage):
    """A storage whose methods raise what they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.on_store: BaseException | None = None
        self.on_delete: BaseException | None = None

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        stored = await super().store(key, chunks, meta)
        if self.on_store is not None:  # the object is there, and the answer is lost
            raise self.on_store
        return stored

    async def delete(self, key: str) -> None:
        if self.on_delete is not None:
            raise self.on_delete
        await super().delete(key)


@pytest.mark.parametrize("error", [OSError("disk"), StorageError("full"), asyncio.CancelledError()])
async def test_a_store_that_fails_is_given_up_at_once(database_url: str, error: BaseException) -> None:
    storage = Failing()
    async with an_archive(database_url, storage=storage) as archive:
        storage.on_store = error
        with pytest.raises(
            asyncio.CancelledError if isinstance(error, asyncio.CancelledError) else StorageError
        ):
            await archive.put()
        [row] = await archive.server.raw_query("SELECT state FROM stored_file")
        assert row["state"] == "condemned"

        assert await archive.swept() == set()
        assert await archive.server.raw_query("SELECT key FROM stored_file") == []


async def test_chunks_that_fail_give_their_own_error(database_url: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield PNG
        raise KeyError("client is gone")

    async with an_archive(database_url) as archive:
        with pytest.raises(KeyError):
            await archive.files.store(chunks(), filename="a.png", content_type="image/png")

        assert await archive.swept() == set()


async def test_an_upload_that_moves_is_not_swept_and_one_that_stands_still_is(database_url: str) -> None:
    clock = FakeClock()
    async with an_archive(database_url, clock=clock) as archive:

        async def chunks(stands_still: bool) -> AsyncIterator[bytes]:
            for _ in range(5):
                clock.advance(timedelta(minutes=90 if stands_still else 40))
                await archive.files.sweep()
                yield PNG

        moving = await archive.files.store(chunks(False), filename="a.png", content_type="image/png")
        with pytest.raises(Exception) as refusal:
            await archive.files.store(chunks(True), filename="b.png", content_type="image/png")

        assert getattr(refusal.value, "code", "") == "CONFLICT"
        assert await archive.swept() == {moving.key}
        assert (await archive.files.check()).is_clean


async def test_keys_of_the_applications_own(database_url: str) -> None:
    async def by_name(ctx: Any, filename: str, content_type: str) -> str:
        return f"media/{content_type}/{filename}"

    async with an_archive(database_url, file_key=by_name) as archive:
        assert await archive.put(name="a.png") == "media/image/png/a.png"
        with pytest.raises(FileExists):
            await archive.put(b"other", name="a.png", content_type="image/png")

        assert await archive.read("media/image/png/a.png") == PNG
        assert await archive.swept() == {"media/image/png/a.png"}


@pytest.mark.parametrize("key", ["../out", "", "/etc/passwd", 7, "a.meta.json"])
async def test_keys_that_are_none_are_refused(sqlite_url: str, key: Any) -> None:
    async with an_archive(sqlite_url, file_key=lambda *about: key) as archive:
        with pytest.raises(StorageError):
            await archive.put()

        assert await archive.objects() == set()


async def test_without_a_storage_nothing_is_stored_and_json_still_works(database_url: str) -> None:
    server = Server()
    server.register(Album)
    async with client(server, database=database_url) as http:
        with pytest.raises(NoStorage):
            await server.files.store(PNG, filename="a.png")

        assert (await http.post("/api/albums", json={"title": "x"})).status_code == 201


async def test_a_file_that_is_not_there_is_not_found(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        for key in ("uploads/none", "../etc", ""):
            assert await archive.files.find(key) is None
            with pytest.raises(FileNotFound):
                await archive.files.open(key)
            with pytest.raises(FileNotFound):
                await archive.files.delete(key)


async def test_urls_of_all_processes_are_signed_with_one_secret(database_url: str, tmp_path: Path) -> None:
    urls: list[str] = []
    secrets: list[list[dict[str, Any]]] = []
    for _ in range(2):
        async with an_archive(database_url, storage=LocalStorage(tmp_path / "files")) as archive:
            if not urls:
                key = await archive.put()
            signer = archive.files.desk.signer
            assert signer is not None
            url = await archive.files.url(key, ttl=timedelta(hours=1))
            urls.append(url)
            query = dict(part.split("=") for part in urls[0].partition("?")[2].split("&"))
            assert signer.check_read(key, query) is not None
            secrets.append(await archive.server.raw_query("SELECT value FROM maniflex_secret"))

    assert urls[0].startswith("/api/files/uploads/")
    assert secrets[0] == secrets[1]
    assert len(secrets[0][0]["value"]) == 64


async def test_a_signing_key_may_be_given(database_url: str) -> None:
    async with an_archive(database_url, files_signing_key="a secret of some length") as archive:
        key = await archive.put()
        url = await archive.files.url(key)

        assert "signature=" in url
        assert await archive.server.raw_query("SELECT id FROM maniflex_secret") == []


class Sealed(Model):
    text: str = field(encrypted=True)


async def test_the_secret_of_urls_is_sealed_beside_encrypted_fields(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"default": bytes(range(32)), "next": bytes(range(32, 64))}
    before = MemoryKeyProvider(keys)
    after = MemoryKeyProvider(keys, current={"default": "next"})
    without = MemoryKeyProvider({"default": bytes(32)})
    urls: list[str] = []
    stored: list[str] = []
    for models, provider in (
        ((Album,), None),
        ((Album, Sealed), before),
        ((Album, Sealed), after),
        ((Album, Sealed), without),
    ):
        settings: dict[str, Any] = {} if provider is None else {"key_provider": provider}
        storage = LocalStorage(tmp_path / "files")
        async with an_archive(database_url, *models, storage=storage, **settings) as archive:
            if not urls:
                key = await archive.put()
            urls.append(await archive.files.url(key, ttl=timedelta(hours=1)))
            _, _, query = urls[0].partition("?")
            signer = archive.files.desk.signer
            assert signer is not None
            opens = signer.check_read(key, dict(part.split("=") for part in query.split("&")))
            assert (opens is not None) == (provider is not without)
            [row] = await archive.server.raw_query("SELECT value FROM maniflex_secret")
            stored.append(row["value"])

    assert len(stored[0]) == 64
    assert [envelope.key_id_of(envelope.from_text(text)) for text in stored[1:]] == [
        "default",
        "next",
        "next",
    ]
    assert "the secret of file URLs does not open" in caplog.text
