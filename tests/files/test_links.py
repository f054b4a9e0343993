"""Files follow their records, whatever writes the records."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from maniflex import Context, Model, Server, WithDeletedAt, belongs_to, field, file, scheduled
from maniflex.errors import FileGone, FileInUse, SerializationFailure, UnknownFile
from maniflex.files.owner import NOBODY
from maniflex.files.store import FileState
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.files import PNG, Album, Archive, an_archive
from tests.kit.http import created, data_of, error_of
from tests.kit.waiting import eventually


async def test_a_replaced_file_goes_and_its_successor_stays(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        old, new = await archive.put(), await archive.put()
        album = await created(archive.http, "/api/albums", cover=old)

        await archive.http.patch(f"/api/albums/{album['id']}", json={"cover": new})

        assert await archive.read(old) == PNG  # until it is swept
        assert await archive.swept() == {new}
        assert await archive.state(old) is None


class Strict(Model, optimistic_lock=True):
    name: str = field(unique=True)
    cover: str | None = file(default=None)


async def test_a_write_that_is_refused_changes_no_file(database_url: str) -> None:
    async with an_archive(database_url, Strict) as archive:
        old, new = await archive.put(), await archive.put()
        kept = await created(archive.http, "/api/stricts", name="a", cover=old)
        await created(archive.http, "/api/stricts", name="b")
        path = f"/api/stricts/{kept['id']}"

        for body, headers, status in (
            ({"cover": new}, {"if-match": '"other"'}, 412),
            ({"cover": new, "name": 7}, {}, 422),
            ({"cover": new, "name": "b"}, {}, 409),
        ):
            assert (await archive.http.patch(path, json=body, headers=headers)).status_code == status

        assert await archive.state(old) is FileState.LINKED
        assert await archive.state(new) is FileState.STORED
        assert await archive.swept() == {old, new}


async def test_a_transaction_that_rolls_back_keeps_the_old_file(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        old, new = await archive.put(), await archive.put()
        album = await created(archive.http, "/api/albums", cover=old)

        async def fail_late() -> None:
            async with archive.server.transaction():
                await archive.server.db(Album).update(album["id"], cover=new)
                await archive.server.db(Album).delete(album["id"])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_late()

        assert await archive.swept() == {old, new}
        assert await archive.state(old) is FileState.LINKED


async def test_a_file_is_moved_from_one_record_to_another_in_one_transaction(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.put()
        album = await created(archive.http, "/api/albums", cover=key)

        async with archive.server.transaction():
            await archive.server.db(Album).delete(album["id"])
            await archive.server.db(Album).create(cover=key)

        assert await archive.swept() == {key}
        assert await archive.state(key) is FileState.LINKED


async def test_two_records_share_a_file_until_the_last_lets_go(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.put()
        one = await created(archive.http, "/api/albums", cover=key)
        two = await created(archive.http, "/api/albums", cover=key, scans=[key])

        await archive.http.delete(f"/api/albums/{one['id']}")
        assert await archive.swept() == {key}
        await archive.http.patch(f"/api/albums/{two['id']}", json={"cover": None})
        assert await archive.swept() == {key}
        await archive.http.delete(f"/api/albums/{two['id']}")
        assert await archive.swept() == set()


async def test_a_field_without_auto_delete_keeps_its_files(database_url: str) -> None:
    class Ledger(Model):
        page: str | None = file(default=None, auto_delete=False)

    async with an_archive(database_url, Ledger, files_unclaimed_ttl=1) as archive:
        key = await archive.put()
        ledger = await created(archive.http, "/api/ledgers", page=key)
        await archive.http.delete(f"/api/ledgers/{ledger['id']}")

        assert await archive.swept() == {key}
        assert await archive.state(key) is FileState.STORED


class Band(Model):
    name: str


class Record(Model):
    band_id: str = field(relation="Band", on_delete="cascade")
    band: Band = belongs_to()
    sleeve: str | None = file(default=None)
    pages: list[str] = file(default_factory=list)


async def test_files_of_rows_that_a_cascade_takes_along_go(database_url: str) -> None:
    async with an_archive(database_url, Band, Record) as archive:
        band = await created(archive.http, "/api/bands", name="x")
        stored = [await archive.put() for _ in range(6)]
        for number in range(3):
            await created(
                archive.http,
                "/api/records",
                band_id=band["id"],
                sleeve=stored[number],
                pages=[stored[3 + number]],
            )

        await archive.http.delete(f"/api/bands/{band['id']}")

        assert await archive.swept() == set()
        assert (await archive.files.check()).is_clean


class Draft(Model, WithDeletedAt, restore=True):
    cover: str | None = file(default=None)
    expires_at: datetime | None = scheduled(hard_delete=True, default=None)


async def test_a_soft_deleted_record_keeps_its_file_and_is_restored_with_it(database_url: str) -> None:
    async with an_archive(database_url, Draft) as archive:
        key = await archive.put()
        draft = await created(archive.http, "/api/drafts", cover=key)

        await archive.http.delete(f"/api/drafts/{draft['id']}")
        assert await archive.swept() == {key}
        restored = await archive.http.post(f"/api/drafts/{draft['id']}/restore")

        assert data_of(restored)["cover"] == key
        assert await archive.read(key) == PNG
        assert (await archive.files.check()).is_clean


async def test_a_scheduled_delete_takes_the_file_along(database_url: str) -> None:
    clock = FakeClock()
    async with an_archive(database_url, Draft, clock=clock) as archive:
        key, later = await archive.put(), await archive.put()
        soon = (clock.now() + timedelta(minutes=1)).isoformat()
        far = (clock.now() + timedelta(days=9)).isoformat()
        await created(archive.http, "/api/drafts", cover=key, expires_at=soon)
        await created(archive.http, "/api/drafts", cover=later, expires_at=far)
        clock.advance(timedelta(minutes=2))

        await archive.server.scheduled.sweep()

        assert await archive.swept() == {later}


async def test_a_linked_file_is_not_deleted(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key, free = await archive.put(), await archive.put()
        await created(archive.http, "/api/albums", cover=key)

        with pytest.raises(FileInUse):
            await archive.files.delete(key)
        await archive.files.delete(free)

        assert await archive.swept() == {key}
        assert await archive.read(key) == PNG


async def test_a_file_that_a_cleaner_has_claimed_cannot_be_linked(database_url: str) -> None:
    """The sweep condemns between the check of the key and the write of the record."""
    clock = FakeClock()
    async with an_archive(database_url, clock=clock, files_unclaimed_ttl=60) as archive:
        key = await archive.put()
        clock.advance(timedelta(minutes=2))
        rows, now = archive.files.desk.rows, clock.now()
        claimed = await rows.claim("another", until=now + timedelta(minutes=5), now=now, limit=10)

        with pytest.raises(FileGone) as refusal:
            await archive.server.db(Album).create(cover=key)

        assert [file.key for file in claimed] == [key]
        assert (refusal.value.status, refusal.value.code, refusal.value.retryable) == (409, "CONFLICT", True)
        assert await archive.server.db(Album).count() == 0


async def test_a_sweep_and_a_link_at_the_same_moment_agree(database_url: str) -> None:
    """Whoever is first wins: either the record has its file, or there is neither."""
    clock = FakeClock()
    async with an_archive(database_url, clock=clock, files_unclaimed_ttl=60) as archive:
        stored = [await archive.put() for _ in range(12)]
        clock.advance(timedelta(minutes=2))
        barrier = asyncio.Barrier(len(stored) + 2)

        async def link(key: str) -> bool:
            await barrier.wait()
            try:
                await archive.server.db(Album).create(cover=key)
            except (FileGone, SerializationFailure, UnknownFile):  # the last: swept and gone already
                return False
            return True

        async def sweep() -> bool:
            await barrier.wait()
            await archive.files.sweep()
            return False

        outcomes = await asyncio.gather(*(link(key) for key in stored), sweep(), sweep())

        linked = {key for key, is_linked in zip(stored, outcomes, strict=False) if is_linked}
        assert await archive.swept() == linked
        assert {album.cover for album in await archive.server.db(Album).list()} == linked
        assert (await archive.files.check()).is_clean


async def test_one_that_lets_go_and_one_that_takes_at_the_same_moment_keep_the_file(
    postgres_url: str,
) -> None:
    """The last link goes while another transaction, which is not committed yet, adds one."""
    async with an_archive(postgres_url) as archive:
        key = await archive.put()
        first = await created(archive.http, "/api/albums", cover=key)
        linked, go_on = asyncio.Event(), asyncio.Event()

        async def take() -> None:
            async with archive.server.transaction():
                await archive.server.db(Album).create(cover=key)
                linked.set()
                await go_on.wait()

        async def let_go() -> None:
            await linked.wait()
            await archive.server.db(Album).delete(first["id"])

        taking, letting_go = asyncio.create_task(take()), asyncio.create_task(let_go())
        await linked.wait()
        await waits_for_a_lock(archive)
        go_on.set()
        await asyncio.gather(taking, letting_go)

        assert await archive.swept() == {key}
        assert await archive.state(key) is FileState.LINKED


async def waits_for_a_lock(archive: Archive) -> None:
    """Return when a statement of this database waits for another transaction."""

    async def waits() -> bool:
        rows = await archive.server.raw_query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(rows)

    await eventually(waits)


async def test_models_without_file_fields_are_not_listened_to(database_url: str) -> None:
    async with an_archive(database_url, Band, Album) as archive:
        stores = archive.server._seal().runtime.stores

        assert not stores[Band].seam.listeners
        assert stores[Album].seam.listeners


async def test_a_hook_in_a_request_stores_a_file_for_its_caller(database_url: str) -> None:
    server = Server(storage="memory:")
    server.register(Album)

    @server.action("POST", "/make")
    async def make(ctx: Context) -> Album:
        stored_file = await server.files.store(PNG, filename="a.png")
        return await ctx.db(Album).create(cover=stored_file.key)

    async with client(server, database=database_url) as http:
        album = data_of(await http.post("/api/make"))
        row = await server.files.find(album["cover"])

    assert row is not None
    assert row.state is FileState.LINKED


async def test_a_link_to_a_file_of_a_pending_upload_is_refused(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        rows = archive.files.desk.rows
        now = archive.server.now()
        later = now + timedelta(hours=1)
        await rows.begin(
            "uploads/x/a.png",
            filename="a",
            content_type="image/png",
            acl="private",
            owner=NOBODY,
            expires_at=later,
            now=now,
        )
        response = await archive.http.post("/api/albums", json={"cover": "uploads/x/a.png"})

    error_of(response, 422, "FILE_NOT_FOUND")
