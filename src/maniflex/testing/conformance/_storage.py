"""What a `Storage` promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar

import pytest

from maniflex.errors import FileExists, FileNotFound, InvalidKey, PresignUnsupported
from maniflex.storage.port import (
    MOST_AT_ONCE,
    FileMeta,
    ListsKeys,
    Storage,
    presign_file,
    sign_urls,
    stat_file,
)

MB = 1024 * 1024
HOUR = timedelta(hours=1)
SIZES = (0, 1, 1000, MB, MB + 3, 11 * MB)  # the last is stored in parts by object stores
ODD_KEYS = (
    "one",
    "uploads/0/photo.png",
    "with space/and+plus",
    "per%25cent/100%.txt",
    "Grüße/日本.txt",
    "q?a=b#c&d;e",
    "(x)[y]{z}'\"<>|*~^`$!,=@:",
    "a/b/c/d/e/f",
    "n" * 200,
)
BAD_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "..",
    "../a",
    "a/../b",
    "a/..",
    "a/./b",
    ".",
    ".hidden",
    "a/.incoming/b",
    "a//b",
    "a/",
    "a\\b",
    "a\x00b",
    "a\nb",
    "x.meta.json",
    "x.META.json",
    "x.meta.json/y",
    "\ud800",
    "n" * 300,
    "n/" * 600 + "n",
)
RANGES = (
    (0, None),
    (0, 10),
    (5, 1),
    (990, None),
    (990, 10),
    (990, 500),
    (1000, None),
    (1000, 5),
    (5000, 1),
    (0, 0),
)


def random_bytes(size: int, seed: int = 1) -> bytes:
    return Random(seed).randbytes(size)


async def in_chunks(data: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for offset in range(0, len(data), size):
        yield data[offset : offset + size]


class BrokenOff(Exception):
    """What the source of an upload raises in these tests."""


SOURCE_ERRORS = (BrokenOff, FileNotFound, TimeoutError, OSError)


async def broken_off(size: int, error: type[Exception] = BrokenOff) -> AsyncIterator[bytes]:
    async for chunk in in_chunks(random_bytes(size)):
        yield chunk
    raise error


class Pausing:
    """A source that gives some bytes and then nothing more until it is cancelled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.paused = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in in_chunks(random_bytes(self._size)):
            yield chunk
        self.paused.set()
        await asyncio.Event().wait()


async def read(storage: Storage, key: str, **part: Any) -> bytes:
    async with await storage.open(key, **part) as reader:
        return await reader.read()


class StorageCase:
    """The fixtures. An author overrides `storage`: empty, and able to make URLs."""

    stops_within: ClassVar[float] = 1.0  # seconds that a cancelled store may take to end

    @pytest.fixture
    async def storage(self) -> Storage:
        raise NotImplementedError("override the `storage` fixture with an empty storage")


class Keeping(StorageCase):
    """Files come out as they went in."""

    @pytest.mark.parametrize("size", SIZES)
    async def test_the_same_bytes_come_out(self, storage: Storage, size: int) -> None:
        data = random_bytes(size)
        stored = await storage.store("a/file", in_chunks(data), FileMeta())
        assert stored.size == size
        assert await read(storage, "a/file") == data

    async def test_chunks_of_any_size_are_taken(self, storage: Storage) -> None:
        data = random_bytes(3 * MB)
        for place, size in enumerate((1 + 3 * MB, 2 * MB, 999)):
            await storage.store(f"file{place}", in_chunks(data, size), FileMeta())
            assert await read(storage, f"file{place}") == data

    @pytest.mark.parametrize("size", [10, 11 * MB])
    @pytest.mark.parametrize(
        ("filename", "content_type"),
        [
            ("photo.png", "image/png"),
            ('Grüße "日本" %41;\r\n\\.txt', "text/plain; charset=utf-8"),
            ("", "application/octet-stream"),
        ],
        ids=["plain", "odd", "none"],
    )
    async def test_name_and_type_are_kept(
        self, storage: Storage, filename: str, content_type: str, size: int
    ) -> None:
        before = datetime.now(UTC) - timedelta(seconds=2)
        stored = await storage.store("file", in_chunks(random_bytes(size)), FileMeta(filename, content_type))
        known = await stat_file(storage, "file")
        assert (known.filename, known.content_type, known.size) == (filename, content_type, size)
        assert (stored.filename, stored.content_type, stored.size) == (filename, content_type, size)
        assert stored.etag == known.etag != ""
        assert known.created_at is not None
        assert known.created_at >= before

    async def test_a_long_name_does_not_hinder(self, storage: Storage) -> None:
        await storage.store("file", in_chunks(b"1"), FileMeta("ü" * 5000))
        assert (await stat_file(storage, "file")).filename.startswith("ü" * 100)

    async def test_keys_of_any_kind_are_told_apart(self, storage: Storage) -> None:
        for place, key in enumerate(ODD_KEYS):
            await storage.store(key, in_chunks(b"%d" % place), FileMeta(f"{place}"))
        for place, key in enumerate(ODD_KEYS):
            assert await read(storage, key) == b"%d" % place
            assert (await stat_file(storage, key)).filename == f"{place}"
        assert not await storage.exists("per%cent/100%.txt")

    async def test_a_stored_file_is_there_until_it_is_deleted(self, storage: Storage) -> None:
        assert not await storage.exists("file")
        await storage.store("file", in_chunks(b"1"), FileMeta())
        await storage.store("file2", in_chunks(b"2"), FileMeta())
        assert await storage.exists("file")
        await storage.delete("file")
        assert not await storage.exists("file")
        with pytest.raises(FileNotFound):
            await storage.open("file")
        assert await read(storage, "file2") == b"2"

    async def test_a_missing_file_is_not_found(self, storage: Storage) -> None:
        with pytest.raises(FileNotFound):
            await storage.open("nothing/here")
        with pytest.raises(FileNotFound):
            await stat_file(storage, "nothing/here")
        with suppress(FileNotFound):
            await storage.delete("nothing/here")

    async def test_what_is_stored_is_listed(self, storage: Storage) -> None:
        if not isinstance(storage, ListsKeys):
            pytest.skip("it does not list, as it may")
        for key in (*ODD_KEYS, "uploads/1/x", "uploadsandmore"):
            await storage.store(key, in_chunks(b"1"), FileMeta())
        assert sorted([key async for key in storage.list_keys()]) == sorted(
            (*ODD_KEYS, "uploads/1/x", "uploadsandmore")
        )
        assert sorted([key async for key in storage.list_keys("uploads/")]) == [
            "uploads/0/photo.png",
            "uploads/1/x",
        ]
        assert [key async for key in storage.list_keys("uploads/1/x")] == ["uploads/1/x"]


class Reading(StorageCase):
    """Parts of a file, and several readers of it."""

    @pytest.mark.parametrize(("start", "length"), RANGES)
    async def test_a_part_of_a_file_is_read(self, storage: Storage, start: int, length: int | None) -> None:
        data = random_bytes(1000)
        await storage.store("file", in_chunks(data), FileMeta("name", "text/plain"))
        async with await storage.open("file", start=start, length=length) as reader:
            assert (reader.meta.size, reader.meta.filename) == (1000, "name")
            part = await reader.read()
        assert part == (data[start:] if length is None else data[start : start + length])

    async def test_a_range_of_an_empty_file_is_empty(self, storage: Storage) -> None:
        await storage.store("file", in_chunks(b""), FileMeta())
        assert await read(storage, "file", start=0, length=5) == b""
        assert await read(storage, "file", start=3) == b""

    async def test_chunks_have_at_most_a_megabyte(self, storage: Storage) -> None:
        await storage.store("file", in_chunks(random_bytes(11 * MB)), FileMeta())
        async with await storage.open("file") as reader:
            sizes = [len(chunk) async for chunk in reader]
        assert max(sizes) <= MOST_AT_ONCE
        assert sum(sizes) == 11 * MB

    async def test_readers_do_not_disturb_each_other(self, storage: Storage) -> None:
        data = random_bytes(3 * MB)
        await storage.store("file", in_chunks(data), FileMeta())
        parts = await asyncio.gather(*(read(storage, "file", start=n, length=2 * MB) for n in range(5)))
        assert parts == [data[n : n + 2 * MB] for n in range(5)]

    async def test_a_reader_may_be_closed_early_and_twice(self, storage: Storage) -> None:
        await storage.store("file", in_chunks(random_bytes(3 * MB)), FileMeta())
        reader = await storage.open("file")
        async for _ in reader:
            break
        await reader.aclose()
        await reader.aclose()
        await storage.delete("file")


class FailingStores(StorageCase):
    """A store that does not end well leaves nothing, and none overwrites."""

    @pytest.mark.parametrize("size", [0, 1000, 12 * MB])
    async def test_a_source_that_breaks_off_leaves_nothing(self, storage: Storage, size: int) -> None:
        with pytest.raises(BrokenOff):
            await storage.store("file", broken_off(size), FileMeta())
        assert not await storage.exists("file")

    @pytest.mark.parametrize("error", SOURCE_ERRORS)
    async def test_an_error_of_the_source_stays_what_it_is(
        self, storage: Storage, error: type[Exception]
    ) -> None:
        for key, size in (("small", 10), ("large", 6 * MB)):
            with pytest.raises(error) as caught:
                await storage.store(key, broken_off(size, error), FileMeta())
            assert caught.type is error

    @pytest.mark.parametrize("size", [1000, 12 * MB])
    async def test_a_cancelled_store_ends_at_once_and_leaves_nothing(
        self, storage: Storage, size: int
    ) -> None:
        source = Pausing(size)
        storing = asyncio.create_task(storage.store("file", source.chunks(), FileMeta()))
        await source.paused.wait()
        storing.cancel()
        done, _ = await asyncio.wait({storing}, timeout=self.stops_within)
        assert done
        assert storing.cancelled()
        assert not await storage.exists("file")

    @pytest.mark.parametrize("size", [1000, 12 * MB])
    async def test_a_taken_key_is_not_overwritten(self, storage: Storage, size: int) -> None:
        await storage.store("file", in_chunks(b"first"), FileMeta("first"))
        with pytest.raises(FileExists):
            await storage.store("file", in_chunks(random_bytes(size)), FileMeta("second"))
        assert await read(storage, "file") == b"first"
        assert (await stat_file(storage, "file")).filename == "first"

    @pytest.mark.parametrize("size", [1000, 11 * MB])
    async def test_of_several_stores_to_one_key_one_succeeds(self, storage: Storage, size: int) -> None:
        outcomes = await asyncio.gather(
            *(
                storage.store("file", in_chunks(random_bytes(size, seed)), FileMeta(f"{seed}"))
                for seed in range(4)
            ),
            return_exceptions=True,
        )
        [winner] = [outcome for outcome in outcomes if isinstance(outcome, FileMeta)]
        assert sum(isinstance(outcome, FileExists) for outcome in outcomes) == 3
        assert (await stat_file(storage, "file")).filename == winner.filename
        assert await read(storage, "file") == random_bytes(size, int(winner.filename))


CALLS: dict[str, Callable[[Storage, str], Awaitable[Any]]] = {
    "store": lambda storage, key: storage.store(key, in_chunks(b"1"), FileMeta()),
    "open": lambda storage, key: storage.open(key),
    "delete": lambda storage, key: storage.delete(key),
    "exists": lambda storage, key: storage.exists(key),
    "stat": stat_file,
    "url": lambda storage, key: storage.url(key, ttl=HOUR),
    "presign_upload": lambda storage, key: presign_file(
        storage, key, ttl=HOUR, max_size=None, content_type="text/plain", filename="a"
    ),
}


class Refusing(StorageCase):
    """Keys that lead elsewhere, and the URLs of others."""

    @pytest.mark.parametrize("call", CALLS)
    async def test_a_bad_key_is_refused(self, storage: Storage, call: str) -> None:
        for key in BAD_KEYS:
            with pytest.raises((InvalidKey, PresignUnsupported)):
                await CALLS[call](storage, key)

    async def test_urls_name_their_keys(self, storage: Storage) -> None:
        keys = ["a/b-c.txt", "b"]
        for ttl in (HOUR, None):
            urls = await sign_urls(storage, keys, ttl=ttl)
            assert [f"/{key}" in url for key, url in zip(keys, urls, strict=True)] == [True, True]
        assert "/a/b-c.txt" in await storage.url("a/b-c.txt", ttl=HOUR)
        assert await sign_urls(storage, [], ttl=HOUR) == []

    async def test_an_upload_is_signed_or_refused(self, storage: Storage) -> None:
        with suppress(PresignUnsupported):
            upload = await presign_file(
                storage, "a/b.txt", ttl=HOUR, max_size=10, content_type="text/plain", filename="b.txt"
            )
            assert upload.method in ("PUT", "POST")
            assert upload.expires_at.tzinfo is not None
