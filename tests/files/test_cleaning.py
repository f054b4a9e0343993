"""What was given up is removed: the object first, then its row, whatever fails or is killed meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from maniflex.errors import StorageError, Unavailable
from maniflex.files.owner import NOBODY
from maniflex.files.store import FileState
from maniflex.model.field import FileRules
from maniflex.storage import FileMeta, LocalStorage, MemoryStorage
from maniflex.testing.clock import FakeClock
from tests.kit.files import PNG, Album, an_archive, in_pieces
from tests.kit.internals import metrics_of
from tests.kit.waiting import eventually


class Grudging(MemoryStorage):
    """A storage that counts deletes and refuses those it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.deletes: Counter[str] = Counter()
        self.refuses: BaseException | None = None
        self.gate: asyncio.Event | None = None

    async def delete(self, key: str) -> None:
        self.deletes[key] += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.refuses is not None:
            raise self.refuses
        await super().delete(key)


async def failing(archive: Any) -> float:
    samples = await metrics_of(archive.server).gauges()
    return next(sample.value for sample in samples if sample.name == "files_cleanup_failing")


@pytest.mark.parametrize("error", [Unavailable(), StorageError("broken"), OSError("odd")])
async def test_a_storage_that_fails_is_asked_again_later(database_url: str, error: Exception) -> None:
    clock, storage = FakeClock(), Grudging()
    async with an_archive(database_url, storage=storage, clock=clock) as archive:
        key, other = await archive.put(), await archive.put()
        await archive.files.delete(key)
        storage.refuses = error

        assert (await archive.files.sweep()).failed == 1
        assert (await archive.files.sweep()).failed == 0  # it waits
        assert await failing(archive) == 1
        clock.advance(timedelta(seconds=8))
        assert (await archive.files.sweep()).failed == 1
        clock.advance(timedelta(seconds=8))
        assert (await archive.files.sweep()).failed == 0  # the pause grows
        assert storage.deletes[key] == 2
        storage.refuses = None
        clock.advance(timedelta(hours=1))

        assert (await archive.files.sweep()).removed == 1
        assert await archive.objects() == {other}
        assert await archive.state(key) is None
        assert await failing(archive) == 0


async def test_two_cleaners_remove_each_file_once(database_url: str) -> None:
    storage = Grudging()
    async with (
        an_archive(database_url, storage=storage) as one,
        an_archive(database_url, storage=storage) as two,
    ):
        stored = [await one.put() for _ in range(250)]
        await one.files.desk.condemn(stored)

        reports = await asyncio.gather(one.files.sweep(), two.files.sweep(), one.files.sweep())

        assert sum(report.removed for report in reports) == 250
        assert set(storage.deletes.values()) == {1}
        assert await one.objects() == set()
        assert await one.server.raw_query("SELECT key FROM stored_file") == []


async def test_a_cleaner_that_died_is_followed_by_another(database_url: str) -> None:
    clock, storage = FakeClock(), Grudging()
    async with an_archive(database_url, storage=storage, clock=clock) as archive:
        key = await archive.put()
        await archive.files.delete(key)
        storage.gate = asyncio.Event()
        dying = asyncio.create_task(archive.files.sweep())
        await eventually(lambda: storage.deletes[key] == 1)
        dying.cancel()
        await asyncio.wait({dying})
        storage.gate = None

        assert (await archive.files.sweep()).removed == 0  # the lease holds
        clock.advance(timedelta(seconds=91))
        assert (await archive.files.sweep()).removed == 1
        assert await archive.objects() == set()


async def test_an_object_that_is_gone_already_counts_as_removed(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.put()
        await archive.files.delete(key)
        await archive.storage.delete(key)

        assert (await archive.files.sweep()).removed == 1
        assert await archive.state(key) is None


async def test_the_server_cleans_by_itself_as_soon_as_a_record_lets_go(database_url: str) -> None:
    async with an_archive(database_url, background=True, sweep_interval=3600) as archive:
        key = await archive.put()
        album = await archive.server.db(Album).create(cover=key)
        await eventually(lambda: archive.server._durable.files._cleaner.ticks >= 1)  # type: ignore[union-attr]

        await archive.server.db(Album).delete(album.id)

        async def is_gone() -> bool:
            return await archive.objects() == set() and await archive.state(key) is None

        await eventually(is_gone)


async def test_files_that_nobody_names_are_kept_unless_told(database_url: str) -> None:
    clock = FakeClock()
    async with an_archive(database_url, clock=clock) as archive:
        key = await archive.put()
        clock.advance(timedelta(days=1000))

        assert await archive.swept() == {key}


async def test_files_that_nobody_names_go_when_their_time_is_over(database_url: str) -> None:
    clock = FakeClock()
    async with an_archive(database_url, clock=clock, files_unclaimed_ttl=3600) as archive:
        named, unnamed = await archive.put(), await archive.put()
        await archive.server.db(Album).create(cover=named)
        clock.advance(timedelta(minutes=59))
        assert await archive.swept() == {named, unnamed}
        clock.advance(timedelta(minutes=2))

        assert await archive.swept() == {named}


async def test_a_file_for_a_field_waits_an_hour_for_its_record(database_url: str) -> None:
    clock = FakeClock()
    async with an_archive(database_url, clock=clock) as archive:
        desk = archive.files.desk
        taken, left = [
            await desk.store(in_pieces(PNG), filename="a.png", owner=NOBODY, rules=FileRules())
            for _ in range(2)
        ]
        await archive.server.db(Album).create(cover=taken.key)
        clock.advance(timedelta(minutes=61))

        assert await archive.swept() == {taken.key}
        assert await archive.state(left.key) is None


async def test_a_minted_upload_goes_a_day_after_its_url(database_url: str) -> None:
    clock = FakeClock()
    async with an_archive(database_url, clock=clock) as archive:
        minted = await archive.files.desk.mint(
            filename="a.png", content_type="image/png", size=None, owner=NOBODY, rules=FileRules()
        )
        await archive.storage.store(minted.key, in_pieces(PNG), FileMeta("a.png", "image/png"))
        clock.advance(timedelta(hours=24))
        assert await archive.swept() == {minted.key}
        clock.advance(timedelta(hours=2))

        assert await archive.swept() == set()
        assert await archive.state(minted.key) is None


async def test_nothing_is_removed_before_the_commit_that_lets_go(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.put()
        album = await archive.server.db(Album).create(cover=key)
        async with archive.server.transaction():
            await archive.server.db(Album).delete(album.id)
            cleaner = asyncio.create_task(sweep_elsewhere(archive))
            await asyncio.wait({cleaner}, timeout=5)
            assert await archive.objects() == {key}
        await cleaner

        assert await archive.swept() == set()


async def sweep_elsewhere(archive: Any) -> None:
    """A sweep outside the transaction that the task began in."""
    from maniflex.db.current import detached_context

    await asyncio.create_task(archive.files.sweep(), context=detached_context())


async def test_leftovers_of_killed_uploads_go_with_the_sweep(sqlite_url: str, tmp_path: Any) -> None:
    clock = FakeClock()
    storage = LocalStorage(tmp_path / "files", clock=clock)
    async with an_archive(sqlite_url, storage=storage, clock=clock) as archive:
        key = await archive.put()
        leftover = tmp_path / "files" / ".incoming" / f"{int(clock.now().timestamp())}-{'0' * 24}"
        leftover.write_bytes(b"half")
        await archive.files.sweep()
        assert leftover.exists()
        clock.advance(timedelta(days=2))

        assert (await archive.files.sweep()).temporaries == 1
        assert not leftover.exists()
        assert await archive.state(key) is FileState.STORED
