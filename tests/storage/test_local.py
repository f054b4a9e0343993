"""Files in a directory: kills, full disks, and what is left behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from maniflex.errors import FileNotFound, StorageError, StorageFull
from maniflex.storage import FileExists, FileMeta, LocalStorage
from maniflex.storage.local import INCOMING
from maniflex.testing import FakeClock
from tests.kit.local_files import files, names, put, read
from tests.kit.processes import nursery, run_program
from tests.kit.waiting import PATIENCE, eventually

HOUR = timedelta(hours=1)
MB = 1024 * 1024
SECRET = b"the secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(root)


# -- what is there, and what is left


async def test_a_file_lies_under_its_key_beside_its_metadata(storage: LocalStorage, root: Path) -> None:
    stored = await put(storage, "uploads/1/name.txt")

    assert files(root) == ["uploads/1/name.txt", "uploads/1/name.txt.meta.json"]
    meta = json.loads((root / "uploads/1/name.txt.meta.json").read_text())
    assert (meta["filename"], meta["content_type"], meta["etag"]) == ("name.txt", "text/plain", stored.etag)
    assert (root / "uploads/1/name.txt").stat().st_mode & 0o077 == 0


async def test_empty_folders_go_with_their_last_file(storage: LocalStorage, root: Path) -> None:
    await put(storage, "uploads/1/a")
    await put(storage, "uploads/2/a")
    await storage.delete("uploads/1/a")
    assert names(root / "uploads") == ["2"]
    await storage.delete("uploads/2/a")
    assert names(root) == [INCOMING]


async def test_stores_and_deletes_beside_each_other_do_not_lose_their_folder(storage: LocalStorage) -> None:
    async def come_and_go(name: str) -> None:
        for _ in range(20):
            await put(storage, f"a/b/{name}")
            await storage.delete(f"a/b/{name}")

    await asyncio.gather(*(come_and_go(f"{n}") for n in range(4)))


async def test_a_file_without_its_metadata_is_not_there(storage: LocalStorage, root: Path) -> None:
    await put(storage, "file")
    (root / "file.meta.json").unlink()

    assert not await storage.exists("file")
    assert [key async for key in storage.list_keys()] == []
    with pytest.raises(FileExists):
        await put(storage, "file")
    await storage.delete("file")
    assert files(root) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"filename": 1}', "\x00" * 10])
async def test_damaged_metadata_is_an_error_and_can_be_deleted(
    storage: LocalStorage, root: Path, text: str
) -> None:
    await put(storage, "file")
    (root / "file.meta.json").write_text(text)

    with pytest.raises(StorageError, match="damaged"):
        await storage.stat("file")
    await storage.delete("file")
    assert files(root) == []


async def test_a_file_that_is_cut_while_it_is_read_is_not_shown_as_whole(
    storage: LocalStorage, root: Path
) -> None:
    await put(storage, "file", b"x" * MB)

    async with await storage.open("file") as reader:
        os.truncate(root / "file", MB // 2)
        with pytest.raises(StorageError, match="shorter"):
            await reader.read()


async def test_a_file_system_that_gives_less_than_it_is_asked_for_loses_nothing(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(700_001)
    await put(storage, "a/b.bin", content)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda number, length, offset: whole(number, min(length, 9_973), offset))
    assert await read(storage, "a/b.bin") == content


async def test_readers_and_stores_leave_no_handle_open(storage: LocalStorage) -> None:
    await put(storage, "file", b"x" * 3 * MB)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        reader = await storage.open("file")
        reading = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        await reader.aclose()
        with pytest.raises(FileExists):
            await put(storage, "file")
        with pytest.raises(FileNotFound):
            await storage.open("none")
    await storage.open("file")  # and one that nobody closes
    await eventually(lambda: len(os.listdir("/proc/self/fd")) == before, "closed handles")


# -- failures


async def test_a_full_disk_is_an_error_and_leaves_nothing(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(storage, "before")
    kept = files(root)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for call in ("writev", "fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StorageFull, match="disk is full") as caught:
                await put(storage, "file")
        assert "disk" not in caught.value.message
        assert files(root) == kept
    await put(storage, "file")
    assert await read(storage, "file") == b"data"


LIMITED = """
import asyncio, resource, sys
from maniflex.storage import FileMeta, LocalStorage, StorageError

async def chunks():
    for _ in range(64):
        yield bytes(65536)

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    try:
        await LocalStorage(sys.argv[1]).store("a/file", chunks(), FileMeta())
    except StorageError as error:
        print(error, flush=True)

asyncio.run(main())
"""


def test_a_file_larger_than_the_system_allows_leaves_nothing(root: Path) -> None:
    with run_program(LIMITED, root) as program:
        assert "File too large" in program.hear()
    assert files(root) == []


async def test_a_cancelled_store_leaves_no_temporary_file(storage: LocalStorage, root: Path) -> None:
    for size in (0, 10, 3 * MB):
        waiting = asyncio.Event()

        async def chunks(size: int = size, waiting: asyncio.Event = waiting) -> AsyncIterator[bytes]:
            yield bytes(size)
            waiting.set()
            await asyncio.Event().wait()

        storing = asyncio.create_task(storage.store("file", chunks(), FileMeta()))
        await waiting.wait()
        storing.cancel()
        await asyncio.wait({storing})
        assert files(root) == []
    await put(storage, "file")


async def test_a_store_that_is_cancelled_at_any_moment_leaves_all_or_nothing(
    storage: LocalStorage, root: Path
) -> None:
    for turns in range(60):
        storing = asyncio.create_task(put(storage, "file"))
        for _ in range(turns):
            await asyncio.sleep(0)
        storing.cancel()
        await asyncio.wait({storing})
        if storing.cancelled():
            assert files(root) == []
        else:
            await storage.delete("file")


async def test_cancelling_does_not_wait_for_a_slow_disk(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, release = Event(), Event()

    def slow(_: int) -> None:
        syncing.set()
        release.wait(2 * PATIENCE)

    monkeypatch.setattr(os, "fsync", slow)
    storing = asyncio.create_task(put(storage, "file"))
    try:
        await asyncio.to_thread(syncing.wait, PATIENCE)
        storing.cancel()
        done, _ = await asyncio.wait({storing}, timeout=PATIENCE)
        assert done
        assert files(root) == []
    finally:
        release.set()
    await eventually(lambda: files(root) == [], "nothing left")


# -- kills

STORING = """
import asyncio, os, sys, time
from pathlib import Path
from maniflex.storage import FileMeta, LocalStorage

def live(line):
    root, where = line.split()
    there = Path(root).parent / "there"

    def stop():
        there.touch()
        time.sleep(60)

    async def chunks():
        yield bytes(2_000_000)
        if where == "stream":
            stop()

    call, _, number = where.partition(":")
    usual, seen = getattr(os, call, None), []

    def stopping(*arguments, **more):
        seen.append(1)
        if len(seen) == int(number):
            stop()
        return usual(*arguments, **more)

    if number:
        setattr(os, call, stopping)
    asyncio.run(LocalStorage(root).store("a/b/file", chunks(), FileMeta("n", "t/t")))
"""
MOMENTS = ("stream", "fsync:1", "fsync:2", "fsync:3", "replace:1", "replace:2")


async def test_a_killed_store_leaves_nothing_readable(tmp_path: Path) -> None:
    with nursery(STORING) as place:
        for number, moment in enumerate(MOMENTS):
            root = tmp_path / f"{number}" / "uploads"
            root.parent.mkdir()
            place.start(f"{root} {moment}")
            await eventually((root.parent / "there").exists, moment)
            place.kill()
            await swept_clean(root, moment)


async def swept_clean(root: Path, moment: str) -> None:
    storage = LocalStorage(root)
    assert not await storage.exists("a/b/file"), moment
    assert [key async for key in storage.list_keys()] == []
    # Some time later a sweep removes what is left, under the key and of temporary files.
    later = FakeClock()
    later.advance(timedelta(days=365 * 50))
    sweeping = LocalStorage(root, clock=later)
    assert files(root) != []
    with suppress(FileNotFound):
        await sweeping.delete("a/b/file")
    stale = await sweeping.stale_temporaries(HOUR)
    assert await sweeping.remove_stale_temporaries(HOUR) == len(stale)
    assert files(root) == [], moment


async def test_temporary_files_are_stale_by_their_age(root: Path) -> None:
    clock = FakeClock()
    storage = LocalStorage(root, clock=clock)
    assert await storage.stale_temporaries(HOUR) == []
    assert await storage.remove_stale_temporaries(HOUR) == 0
    halfway = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"1"
        halfway.set()
        await asyncio.Event().wait()

    storing = asyncio.create_task(storage.store("file", chunks(), FileMeta()))
    await halfway.wait()
    (root / INCOMING / "something-else").write_text("not ours")
    clock.advance(HOUR / 2)
    assert await storage.stale_temporaries(HOUR) == []
    clock.advance(HOUR)
    assert len(await storage.stale_temporaries(HOUR)) == 1
    assert await storage.remove_stale_temporaries(HOUR) == 1
    storing.cancel()
    await asyncio.wait({storing})
    assert files(root) == [f"{INCOMING}/something-else"]


# -- the directory


def test_the_directory_is_made_and_written_to(storage: LocalStorage, root: Path) -> None:
    assert storage.problems() == []
    assert files(root) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    [problem] = LocalStorage(tmp_path / "file" / "uploads").problems()

    assert str(tmp_path / "file" / "uploads") in problem
