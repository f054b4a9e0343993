"""The one life of a server: what happens in which order, what a failure undoes, what the deadline ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Config, Context, Server
from maniflex.app.lifecycle import LifecycleError
from maniflex.errors import ManiflexError, Unavailable
from maniflex.testing import client
from tests.kit.notes import Note

DEADLINE = timedelta(milliseconds=300)
SLACK = 30  # seconds a busy machine may add; without a deadline these tests would hang for good


class Part:
    """A service that writes down when it was started and stopped."""

    def __init__(self, name: str, diary: list[str], fails: bool = False) -> None:
        self.name, self.diary, self.fails = name, diary, fails

    async def start(self) -> None:
        if self.fails:
            raise RuntimeError(f"{self.name} has no power")
        self.diary.append(f"{self.name} started")

    async def stop(self) -> None:
        self.diary.append(f"{self.name} stopped")


def a_server(database: str, **settings: Any) -> Server:
    server = Server(database, **settings)
    server.register(Note)
    return server


async def notes(server: Server) -> int:
    return await server.db(Note).count()


async def test_the_database_is_ready_before_on_start_and_services_come_after(database_url: str) -> None:
    diary: list[str] = []

    async def in_config() -> None:
        diary.append(f"configured hook, {await notes(server)} notes")

    server = a_server(database_url, on_start=in_config, on_shutdown=lambda: diary.append("configured end"))
    server.add_service(Part("first", diary))
    server.add_service(Part("second", diary))
    server.add_service(lambda: diary.append("a function"))

    @server.on_start
    async def hook() -> None:
        await server.db(Note).create(text="made at start")
        diary.append("hook")

    @server.on_shutdown
    async def end() -> None:
        diary.append(f"end, {await notes(server)} notes")  # the database is still there

    async with server.lifespan():
        assert diary == ["configured hook, 0 notes", "hook", "first started", "second started", "a function"]
        diary.clear()

    assert diary == ["second stopped", "first stopped", "configured end", "end, 1 notes"]


async def test_a_plain_service_and_plain_hooks_need_no_async(sqlite_url: str) -> None:
    diary: list[str] = []

    class Plain:
        def start(self) -> None:
            diary.append("start")

        def stop(self) -> None:
            diary.append("stop")

    server = a_server(sqlite_url)
    server.add_service(Plain())
    server.on_start(lambda: diary.append("hook"))
    async with server.lifespan():
        pass

    assert diary == ["hook", "start", "stop"]


async def test_a_service_that_cannot_start_stops_those_before_it_and_closes_the_database(
    database_url: str,
) -> None:
    diary: list[str] = []
    server = a_server(database_url)
    server.add_service(Part("first", diary))
    server.add_service(Part("second", diary))
    server.add_service(Part("broken", diary, fails=True))
    server.add_service(Part("never", diary))

    with pytest.raises(RuntimeError, match="broken has no power"):
        await server.start()

    assert diary == ["first started", "second started", "second stopped", "first stopped"]
    with pytest.raises(Unavailable):
        await notes(server)
    with pytest.raises(LifecycleError, match="stopped"):
        await server.start()


async def test_a_hook_that_fails_keeps_services_from_starting(sqlite_url: str) -> None:
    diary: list[str] = []
    server = a_server(sqlite_url)
    server.add_service(Part("service", diary))

    @server.on_start
    def hook() -> None:
        raise RuntimeError("no licence")

    with pytest.raises(RuntimeError, match="no licence"):
        async with server.lifespan():
            raise AssertionError("it must not run")

    assert diary == []


async def test_a_start_that_is_cancelled_leaves_nothing_running(sqlite_url: str) -> None:
    diary: list[str] = []
    reached = asyncio.Event()
    server = a_server(sqlite_url)
    server.add_service(Part("service", diary))

    class Slow(Part):
        async def start(self) -> None:
            reached.set()
            await asyncio.Event().wait()

    server.add_service(Slow("slow", diary))
    starting = asyncio.create_task(server.start())
    await reached.wait()
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting

    assert diary == ["service started", "service stopped"]
    with pytest.raises(Unavailable):
        await notes(server)


async def test_failures_while_stopping_are_logged_and_the_rest_still_stops(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    diary: list[str] = []
    server = a_server(sqlite_url)
    server.add_service(Part("first", diary))

    class Stubborn(Part):
        async def stop(self) -> None:
            raise RuntimeError("jammed")

    server.add_service(Stubborn("stubborn", diary))

    @server.on_shutdown
    def end() -> None:
        raise RuntimeError("no pen")

    async with server.lifespan():
        diary.clear()

    assert diary == ["first stopped"]
    failures = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert failures == ["stopping Stubborn failed", "on_shutdown failed"]
    with pytest.raises(Unavailable):
        await notes(server)


async def test_a_second_start_is_refused_while_running_and_after_stopping_and_repeats_nothing(
    sqlite_url: str,
) -> None:
    diary: list[str] = []
    server = a_server(sqlite_url)
    server.add_service(Part("service", diary))
    async with server.lifespan():
        with pytest.raises(LifecycleError, match="running"):
            await server.start()
        assert await notes(server) == 0

    await server.stop()
    with pytest.raises(LifecycleError, match="stopped"):
        await server.start()
    assert diary == ["service started", "service stopped"]


async def test_two_starts_at_once_are_one_start_and_one_refusal(database_url: str) -> None:
    diary: list[str] = []
    server = a_server(database_url)
    server.add_service(Part("service", diary))

    outcomes = await asyncio.gather(server.start(), server.start(), return_exceptions=True)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LifecycleError", "NoneType"]
    assert diary == ["service started"]
    await server.stop()


async def test_two_stops_at_once_stop_once(sqlite_url: str) -> None:
    diary: list[str] = []
    server = a_server(sqlite_url)
    server.add_service(Part("service", diary))
    await server.start()

    await asyncio.gather(server.stop(), server.stop())

    assert diary.count("service stopped") == 1


def hang_in_a_service(server: Server) -> None:
    class Hanging:
        def start(self) -> None: ...

        async def stop(self) -> None:
            await asyncio.Event().wait()

    server.add_service(Hanging())
    server.add_service(Hanging())


def hang_in_a_hook(server: Server) -> None:
    server.on_shutdown(asyncio.Event().wait)
    server.on_shutdown(asyncio.Event().wait)


def hang_in_a_task(server: Server) -> None:
    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    server.go(stubborn)


def hang_in_background(server: Server) -> None:
    @server.action("POST", "/hang")
    async def hang(ctx: Context) -> None:
        ctx.background(asyncio.Event().wait)


@pytest.mark.parametrize("hang", [hang_in_a_service, hang_in_a_hook, hang_in_a_task, hang_in_background])
async def test_nothing_that_hangs_holds_a_stop_beyond_its_deadline(
    hang: Callable[[Server], None], sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = a_server(sqlite_url, shutdown_timeout=DEADLINE)
    hang(server)

    async with client(server, database=sqlite_url) as http:
        await http.post("/api/hang")
        began = time.monotonic()
    took = time.monotonic() - began

    assert took < DEADLINE.total_seconds() + SLACK
    with pytest.raises(ManiflexError):
        await notes(server)


async def test_a_callers_deadline_wins_over_the_configured_one(sqlite_url: str) -> None:
    server = a_server(sqlite_url, shutdown_timeout=timedelta(hours=1))
    hang_in_a_service(server)
    await server.start()

    began = time.monotonic()
    await server.stop(DEADLINE)

    assert time.monotonic() - began < DEADLINE.total_seconds() + SLACK


async def test_the_deadline_counts_from_the_moment_shutdown_begins(sqlite_url: str) -> None:
    server = a_server(sqlite_url, shutdown_timeout=timedelta(milliseconds=1))
    hang_in_a_service(server)
    await server.start()
    server.begin_shutdown()

    began = time.monotonic()
    await server.stop(timedelta(hours=1))  # too late: the clock has been running

    assert time.monotonic() - began < SLACK


async def test_go_runs_beside_the_server_and_is_told_when_it_stops(sqlite_url: str) -> None:
    diary: list[str] = []
    begun = asyncio.Event()

    async def beside() -> None:
        diary.append(f"{await notes(server)} notes")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            diary.append("told")

    server = a_server(sqlite_url)
    server.go(beside)
    async with server.lifespan():
        await begun.wait()
        later = asyncio.Event()

        async def from_within() -> None:
            later.set()

        server.go(from_within)
        await later.wait()

    assert diary == ["0 notes", "told"]
    with pytest.raises(LifecycleError, match="stopping"):
        server.go(beside)


async def test_a_task_of_go_that_fails_is_logged_and_ends_nothing(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    async def doomed() -> None:
        failed.set()
        raise RuntimeError("out of luck")

    server = a_server(sqlite_url)
    server.go(doomed)
    async with server.lifespan():
        await failed.wait()
        assert await notes(server) == 0

    [line] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert line.getMessage() == "doomed failed"
    assert "out of luck" in str(line.exc_info)


async def test_background_work_outlives_its_request_and_is_awaited_at_shutdown(database_url: str) -> None:
    server = a_server(database_url)
    answered = asyncio.Event()
    done: list[int] = []

    @server.action("POST", "/later")
    async def later(ctx: Context) -> dict[str, bool]:
        async def work() -> None:
            await answered.wait()
            await server.db(Note).create(text="later")
            done.append(await notes(server))

        ctx.background(work)
        return {"accepted": True}

    async with client(server, database=database_url) as http:
        assert (await http.post("/api/later")).json() == {"data": {"accepted": True}}
        assert done == []
        answered.set()

    assert done == [1]


async def test_background_work_that_fails_is_logged_and_ends_nothing(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = a_server(sqlite_url)

    @server.action("POST", "/later")
    async def later(ctx: Context) -> None:
        async def work() -> None:
            raise RuntimeError("the mail server is away")

        ctx.background(work)

    async with client(server, database=sqlite_url) as http:
        assert (await http.post("/api/later", headers={"X-Request-Id": "r-9"})).status_code == 204
        assert (await http.get("/api/notes")).status_code == 200

    [line] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "r-9" in line.getMessage()
    assert "the mail server is away" in str(line.exc_info)


async def test_a_client_role_has_the_database_and_starts_nothing(database_url: str) -> None:
    diary: list[str] = []

    async def beside() -> None:
        diary.append("beside")

    server = a_server(database_url)
    server.add_service(Part("worker", diary))
    server.go(beside)
    async with server.lifespan(role="client") as same:
        assert same is server
        note = await server.db(Note).create(text="from a script")
        assert (await server.db(Note).read(note.id)).text == "from a script"

    assert diary == []


async def test_an_app_with_no_models_starts_and_answers(database_url: str) -> None:
    server = Server(Config(health_check_db=True))
    async with client(server, database=database_url) as http:
        assert (await http.get("/health")).json() == {"status": "ok", "database": "ok"}
        assert (await http.get("/ready")).status_code == 200
        assert (await http.get("/api/anything")).status_code == 404
