"""Uploads that stand still, die or break off at any stage: one sweep later objects and rows fit together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import ConfigError, Context, Model, Next, Server, file
from maniflex.errors import FileGone
from maniflex.storage import FileMeta, LocalStorage, Reader
from maniflex.testing import FakeClock, client
from tests.kit.object_stores import s3_storage
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually

PART = ("a.bin", b"first" + bytes(100_000), "application/x-a")
STAGES = ("before the first byte", "between bytes", "behind the last byte", "object stored", "row stored")


class Film(Model):
    title: str = ""
    notes: str | None = file(default=None)
    video: str | None = file(default=None, upload="stream")
    raw: str | None = file(default=None, upload="presigned")


class Stop:
    """A place in uploads at which everything that comes there waits, until it is told to go on."""

    def __init__(self) -> None:
        self.stage = ""
        self.is_reached = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None

    def at(self, stage: str) -> None:
        self.stage, self.error = stage, None
        self.is_reached.clear()
        self.goes_on.clear()

    async def move_to(self, stage: str) -> None:
        """Let what waits here go on, as far as another stage."""
        goes_on, self.goes_on = self.goes_on, asyncio.Event()
        self.at(stage)
        goes_on.set()
        await asyncio.wait_for(self.is_reached.wait(), 20)

    async def pass_by(self, stage: str) -> None:
        if stage == self.stage:
            self.stage = ""
            self.is_reached.set()
            await self.goes_on.wait()
            if self.error is not None:
                raise self.error


class StoppingStorage:
    """A storage, and a stop at each stage of a store."""

    def __init__(self, inner: Any, stop: Stop) -> None:
        self._inner = inner
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        await self._stop.pass_by(STAGES[0])
        stored: FileMeta = await self._inner.store(key, self._watch(chunks), meta)
        await self._stop.pass_by(STAGES[3])
        return stored

    async def _watch(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk[:5]
            await self._stop.pass_by(STAGES[1])
            yield chunk[5:]
        await self._stop.pass_by(STAGES[2])

    # Named, because a protocol is not met by what `__getattr__` finds.

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        reader: Reader = await self._inner.open(key, start=start, length=length)
        return reader

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def exists(self, key: str) -> bool:
        return bool(await self._inner.exists(key))

    async def stat(self, key: str) -> FileMeta:
        meta: FileMeta = await self._inner.stat(key)
        return meta

    async def url(self, key: str, **options: Any) -> str:
        return str(await self._inner.url(key, **options))

    async def presign_upload(self, key: str, **options: Any) -> Any:
        return await self._inner.presign_upload(key, **options)


class World:
    """A server whose uploads stop, and another on the same database and storage, which cleans."""

    def __init__(self, http: httpx.AsyncClient, uploading: Server, other: Server, stop: Stop) -> None:
        self.http = http
        self.uploading = uploading
        self.other = other
        self.stop = stop

    async def upload(self, way: str) -> httpx.Response:
        if way == "route":
            return await self.http.post("/api/files", files={"file": PART})
        if way == "signed url":
            wish = {"filename": PART[0], "content_type": PART[2]}
            target = (await self.http.post("/api/films/raw/upload-url", json=wish)).json()["data"]
            return await self.http.put(target["url"], content=PART[1], headers=target["headers"])
        return await self.http.post("/api/films", data={"title": "x"}, files={way: PART})

    async def objects(self) -> set[str]:
        storage: Any = self.other.files.desk.storage
        return {key async for key in storage.list_keys()}

    async def rows(self) -> set[str]:
        return {row.key for row in await self.other.files.desk.rows.page("", 1000)}

    async def assert_fits(self, what: str) -> None:
        """After one sweep there is no object without a row, and no row without an object."""
        await self.other.files.sweep()
        assert await self.objects() == await self.rows(), what
        assert (await self.other.files.check()).is_clean, what


@asynccontextmanager
async def a_world(database: str, storage: Any, clock: FakeClock) -> AsyncIterator[World]:
    stop = Stop()

    def a_server(storage: Any) -> Server:
        server = Server(storage=storage, background=False, files_unclaimed_ttl=timedelta(hours=2))
        server.register(Film)

        @server.pipeline.service.middleware()
        async def pause(ctx: Context, next: Next) -> None:
            await stop.pass_by(STAGES[4])
            await next()

        return server

    async with AsyncExitStack() as stack:
        uploading, other = a_server(StoppingStorage(storage, stop)), a_server(storage)
        http = await stack.enter_async_context(client(uploading, database=database, clock=clock))
        await stack.enter_async_context(client(other, database=database, clock=clock))
        yield World(http, uploading, other, stop)


async def end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(BaseException):
        await task


async def stand_still(world: World, task: asyncio.Task[Any], clock: FakeClock, what: str) -> None:
    """Another process takes the upload for dead; then it goes on."""
    clock.advance(timedelta(days=3))
    await world.assert_fits(what)
    world.stop.goes_on.set()
    answer = await task
    assert answer.status_code >= 400, (what, answer.text)
    await world.assert_fits(what)
    assert await world.objects() == set(), what


async def die(world: World, task: asyncio.Task[Any], clock: FakeClock, what: str) -> None:
    """Nothing of it runs any more."""
    clock.advance(timedelta(days=3))
    await world.assert_fits(what)
    assert await world.objects() == set(), what
    await end(task)


async def break_off(world: World, task: asyncio.Task[Any], clock: FakeClock, what: str) -> None:
    """The storage or the code behind it fails."""
    world.stop.error = OSError("the cable is cut")
    world.stop.goes_on.set()
    assert (await task).status_code >= 500, what
    if what.startswith("signed url"):  # which may be tried again while the URL is good
        clock.advance(timedelta(days=3))
    await world.assert_fits(what)


async def be_cancelled(world: World, task: asyncio.Task[Any], clock: FakeClock, what: str) -> None:
    """Its client leaves."""
    await end(task)
    clock.advance(timedelta(days=3))
    await world.assert_fits(what)

    async def is_empty() -> bool:
        # The request gives its file up behind its end, and a sweep leaves a row alone that is just changed.
        await world.other.files.sweep()
        return not await world.objects()

    await eventually(is_empty, what)


FATES = (stand_still, die, break_off, be_cancelled)
WAYS = {"route": STAGES[:4], "notes": STAGES, "video": STAGES, "signed url": STAGES[:4]}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_directory_and_its_table_fit_whatever_becomes_of_an_upload(
    database_url: str, tmp_path: Path, way: str, fate: Any
) -> None:
    clock = FakeClock()
    async with a_world(database_url, LocalStorage(tmp_path / "uploads"), clock) as world:
        await go_through_stages(world, way, fate, clock)


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("way", ["route", "notes", "video"])
async def test_a_bucket_and_its_table_fit_whatever_becomes_of_an_upload(
    sqlite_url: str, s3_endpoint: str, way: str, fate: Any
) -> None:
    clock = FakeClock()
    async with a_world(sqlite_url, s3_storage(s3_endpoint), clock) as world:
        await go_through_stages(world, way, fate, clock)


async def go_through_stages(world: World, way: str, fate: Any, clock: FakeClock) -> None:
    for stage in WAYS[way]:
        what = f"{way}, {stage}, {fate.__name__}"
        world.stop.at(stage)
        task = asyncio.create_task(world.upload(way))
        await asyncio.wait_for(world.stop.is_reached.wait(), 20)
        await fate(world, task, clock, what)


@pytest.mark.parametrize("fate", [break_off, be_cancelled])
@pytest.mark.parametrize("way", WAYS)
async def test_an_upload_that_stood_still_and_fails_behind_its_object_leaves_none(
    database_url: str, tmp_path: Path, way: str, fate: Any
) -> None:
    """Its row is gone when the object comes, and what tells of that does not get so far."""
    clock = FakeClock()
    async with a_world(database_url, LocalStorage(tmp_path / "uploads"), clock) as world:
        world.stop.at(STAGES[2])
        task = asyncio.create_task(world.upload(way))
        await asyncio.wait_for(world.stop.is_reached.wait(), 20)
        clock.advance(timedelta(days=3))
        await world.assert_fits("while it stands still")
        await world.stop.move_to(STAGES[3])
        await fate(world, task, clock, f"{way}, {fate.__name__}")
        assert await world.objects() == set()


@pytest.mark.parametrize("stage", STAGES[2:4])
@pytest.mark.parametrize("other", ["under way", "stored", "named by a record"])
async def test_an_upload_that_stood_still_leaves_a_later_one_of_its_key_alone(
    database_url: str, tmp_path: Path, stage: str, other: str
) -> None:
    """`file_key` gives equal keys: whoever is told 201 has its bytes, and nobody is told it for another's."""
    clock, stops = FakeClock(), (Stop(), Stop())
    storage, later_part = LocalStorage(tmp_path / "uploads"), ("a.bin", b"later" * 99, "application/x-b")

    def a_server(stop: Stop) -> Server:
        server = Server(
            storage=StoppingStorage(storage, stop),
            background=False,
            file_key=lambda ctx, filename, content_type: f"same/{filename}",
        )
        server.register(Film)
        return server

    early, late = map(a_server, stops)
    async with (
        client(early, database=database_url, clock=clock) as http,
        client(late, database=database_url, clock=clock) as later_http,
    ):
        stops[0].at(stage)
        upload = asyncio.create_task(http.post("/api/files", files={"file": PART}))
        await stops[0].is_reached.wait()
        clock.advance(timedelta(days=3))
        await late.files.sweep()
        if other == "under way":
            stops[1].at(STAGES[1])
        later_upload = asyncio.create_task(later_http.post("/api/files", files={"file": later_part}))
        await asyncio.wait(
            (later_upload, asyncio.create_task(stops[1].is_reached.wait())), return_when="FIRST_COMPLETED"
        )
        if other == "named by a record":
            assert (await later_http.post("/api/films", json={"notes": "same/a.bin"})).status_code == 201
        stops[0].goes_on.set()
        assert (await upload).status_code >= 400
        stops[1].goes_on.set()
        answer = await later_upload
        await late.files.sweep()

        keys = {key async for key in storage.list_keys()}
        assert keys == {row.key for row in await late.files.desk.rows.page("", 10)}
        assert (await late.files.check()).is_clean
        if other == "under way":  # nobody knows whose object it would have been
            assert answer.status_code >= 400
            assert keys == set()
        else:
            assert (answer.status_code, keys) == (201, {"same/a.bin"})
            async with await late.files.open("same/a.bin") as reader:
                assert await reader.read() == later_part[1]


@pytest.mark.parametrize("presign", ["put", "post"])
async def test_a_signed_url_that_is_used_once_more_leaves_no_object_behind(
    database_url: str, s3_endpoint: str, presign: str
) -> None:
    """Its file was named and removed, and the URL is still good."""
    clock = FakeClock(datetime.now(UTC))
    async with (
        a_world(database_url, s3_storage(s3_endpoint, presign=presign), clock) as world,
        httpx.AsyncClient() as bucket,
    ):
        wish = {"filename": PART[0], "content_type": PART[2]}
        target = (await world.http.post("/api/films/raw/upload-url", json=wish)).json()["data"]

        async def send() -> None:
            form: dict[str, Any] = {"data": target["fields"], "files": {"file": PART}}
            body = {"content": PART[1], "headers": target["headers"]} if presign == "put" else form
            assert (await bucket.request(target["method"], target["url"], **body)).is_success

        await send()
        film = (await world.http.post("/api/films", json={"raw": target["key"]})).json()["data"]
        assert (await world.http.delete(f"/api/films/{film['id']}")).status_code == 204
        report = await world.other.files.sweep()
        assert (report.removed, await world.objects()) == (1, set())
        assert (await world.other.files.check()).is_clean
        again = await world.http.post("/api/films", json={"raw": target["key"]})
        assert again.status_code == 422

        await send()
        clock.advance(timedelta(days=2))
        await world.assert_fits("after the second upload")
        assert await world.objects() == await world.rows() == set()


async def test_a_cleaner_that_looked_too_early_does_not_remove_the_row(
    database_url: str, tmp_path: Path
) -> None:
    """It found no object, and the upload that went on stored one before the cleaner removed the row."""
    clock = FakeClock()
    async with a_world(database_url, LocalStorage(tmp_path / "uploads"), clock) as world:
        world.stop.at(STAGES[2])
        task = asyncio.create_task(world.upload("route"))
        await world.stop.is_reached.wait()
        clock.advance(timedelta(days=3))
        rows, now = world.other.files.desk.rows, clock.now()
        [claimed] = await rows.claim("of the cleaner", until=now + timedelta(minutes=5), now=now, limit=10)
        world.stop.goes_on.set()
        assert (await task).status_code == 409
        assert not await rows.remove(claimed.key, "of the cleaner")
        assert await world.objects() == await world.rows() == {claimed.key}
        await world.assert_fits("after the cleaner")
        assert await world.rows() == set()


async def test_a_failed_store_is_given_up_once_the_database_is_back(
    postgres_url: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    relay = Relay(postgres_url)
    await relay.listen()
    async with a_world(relay.url, LocalStorage(tmp_path / "uploads"), clock) as world:
        world.stop.at(STAGES[3])
        task = asyncio.create_task(world.upload("route"))
        await world.stop.is_reached.wait()
        clock.advance(timedelta(days=3))
        await world.other.files.sweep()
        storage = LocalStorage(tmp_path / "uploads")
        await storage.store("uploads/again/a.bin", _once(b"x"), FileMeta("a.bin"))
        await relay.cut()
        world.stop.goes_on.set()
        assert (await task).status_code >= 500
        await relay.listen()
        await world.uploading.files.sweep()
        assert {key async for key in storage.list_keys()} == {"uploads/again/a.bin"}
    await relay.cut()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_an_upload_that_waits_for_bytes_is_kept(sqlite_url: str, tmp_path: Path) -> None:
    """The timer of the process looks after rows, also while neither client nor storage moves."""
    clock = FakeClock()
    async with a_world(sqlite_url, LocalStorage(tmp_path / "uploads"), clock) as world:
        world.stop.at(STAGES[1])
        task = asyncio.create_task(world.upload("route"))
        await world.stop.is_reached.wait()
        for _ in range(10):
            clock.advance(timedelta(minutes=20))
            await world.uploading.files.desk.uploads.prolong_all()
            await world.other.files.sweep()
        world.stop.goes_on.set()
        assert (await task).status_code == 201
        await world.assert_fits("kept")
        assert len(await world.objects()) == 1


async def test_an_upload_whose_row_is_gone_ends_at_its_next_byte(sqlite_url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    async with a_world(sqlite_url, LocalStorage(tmp_path / "uploads"), clock) as world:
        bytes_sent = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal bytes_sent
            for _ in range(100):
                bytes_sent += 1000
                yield bytes(1000)
                if bytes_sent == 2000:
                    clock.advance(timedelta(days=3))
                    await world.other.files.sweep()

        with pytest.raises(FileGone):
            await world.uploading.files.store(chunks(), filename="a.bin", content_type="application/x-a")
        assert bytes_sent == 3000
        assert await world.objects() == set()


@pytest.mark.parametrize("ttl", [0, 1, 59.9])
async def test_a_time_in_which_no_upload_could_move_stops_the_start(ttl: float) -> None:
    with pytest.raises(ConfigError, match=r"files_pending_ttl: .* a minute or longer"):
        Server(storage="memory:", files_pending_ttl=timedelta(seconds=ttl))
    Server(storage="memory:", files_pending_ttl=timedelta(seconds=60))
