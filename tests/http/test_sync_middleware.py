"""Plain `def` middleware and handlers: in a thread, with everything an async one can do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from maniflex import Context, Model, Next, Response, Server, with_transaction
from maniflex.pipeline import threads
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, total
from tests.kit.waiting import PATIENCE

SyncNext = Callable[[], None]


class Post(Model):
    title: str


def blog() -> Server:
    server = Server()
    server.register(Post)
    return server


async def test_it_runs_in_another_thread_and_goes_on_with_next(database_url: str) -> None:
    seen: list[Any] = []
    server = blog()

    def note(ctx: Context, next: SyncNext) -> None:
        seen.append(threading.current_thread() is threading.main_thread())
        next()
        seen.append(ctx.result.title)

    server.pipeline.service.register(note, operations=["create"])
    async with client(server, database=database_url) as http:
        await created(http, "/api/posts", title="a")
    assert seen == [False, "a"]


async def test_its_abort_and_its_exceptions_end_the_request(database_url: str) -> None:
    server = blog()

    def refuse(ctx: Context, next: SyncNext) -> None:
        if ctx.field("title") == "panic":
            raise RuntimeError("no")
        if ctx.field("title") == "abort":
            ctx.abort(403, "CLOSED", "not for you")
        next()

    server.pipeline.service.register(refuse, operations=["create"])
    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/posts", json={"title": "abort"}), 403, "CLOSED")
        error_of(await http.post("/api/posts", json={"title": "panic"}), 500, "PANIC")
        await created(http, "/api/posts", title="fine")
        assert await total(http, "/api/posts") == 1


async def test_what_it_does_not_pass_on_does_not_happen(database_url: str) -> None:
    server = blog()

    def swallow(ctx: Context, next: SyncNext) -> None:
        ctx.response = Response(202)

    server.pipeline.service.register(swallow, operations=["create"])
    async with client(server, database=database_url) as http:
        assert (await http.post("/api/posts", json={"title": "a"})).status_code == 202
        assert await total(http, "/api/posts") == 0


async def test_an_error_from_further_in_comes_out_of_next(database_url: str) -> None:
    seen: list[str] = []
    server = blog()

    def watch(ctx: Context, next: SyncNext) -> None:
        try:
            next()
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    server.pipeline.auth.register(watch, operations=["create"])
    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/posts", json={}), 422, "VALIDATION_FAILED")
    assert seen == ["ValidationFailed"]


async def test_the_transaction_around_it_is_the_one_inside_it(database_url: str) -> None:
    server = blog()
    seen: list[bool] = []

    def between(ctx: Context, next: SyncNext) -> None:
        seen.append(ctx.tx is not None)
        next()
        ctx.abort(409, "LATE", "too late")

    server.pipeline.service.register(with_transaction(), operations=["create"])
    server.pipeline.service.register(between, operations=["create"])
    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/posts", json={"title": "a"}), 409, "LATE")
        assert await total(http, "/api/posts") == 0
    assert seen == [True]


async def many_requests(server: Server, database: str, count: int = 60) -> list[int]:
    async with client(server, database=database) as http:
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(http.get("/api/posts") for _ in range(count)))
        return [answer.status_code for answer in answers]


async def test_many_requests_through_two_nested_ones_do_not_deadlock(database_url: str) -> None:
    server = blog()

    def outer(ctx: Context, next: SyncNext) -> None:
        next()

    def inner(ctx: Context, next: SyncNext) -> None:
        next()

    server.pipeline.auth.register(outer)
    server.pipeline.service.register(inner)
    assert await many_requests(server, database_url) == [200] * 60


async def test_many_requests_through_the_same_one_twice_do_not_deadlock(database_url: str) -> None:
    server = blog()

    def twice(ctx: Context, next: SyncNext) -> None:
        next()

    server.pipeline.auth.register(twice)
    server.pipeline.service.register(twice)
    server.pipeline.db.register(twice)
    assert await many_requests(server, database_url) == [200] * 60


async def test_many_requests_that_run_others_through_the_same_one_do_not_deadlock(database_url: str) -> None:
    class Feed(Model):
        title: str

    server = blog()
    server.register(Feed)

    def gate(ctx: Context, next: SyncNext) -> None:
        next()

    async def look_up(ctx: Context, next: Next) -> None:
        await server.execute("list", Feed)
        await next()

    server.pipeline.auth.register(gate)
    server.pipeline.service.register(look_up, models=[Post])
    assert await many_requests(server, database_url, 100) == [200] * 100


async def test_blocking_in_one_does_not_block_other_requests(sqlite_url: str) -> None:
    server = blog()
    arrived, release = threading.Event(), threading.Event()

    def slow(ctx: Context, next: SyncNext) -> None:
        arrived.set()
        release.wait(30)
        next()

    server.pipeline.service.register(slow, operations=["create"])
    async with client(server, database=sqlite_url) as http:
        waiting = asyncio.create_task(http.post("/api/posts", json={"title": "a"}))
        await asyncio.to_thread(arrived.wait, 30)
        assert (await http.get("/api/posts")).status_code == 200
        release.set()
        assert (await waiting).status_code == 201


async def test_work_can_be_started_from_it(database_url: str) -> None:
    server = blog()
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    def start(ctx: Context, next: SyncNext) -> None:
        next()
        ctx.background(work)

    server.pipeline.service.register(start, operations=["list"])

    @server.action("POST", "/start")
    def handler(ctx: Context) -> dict[str, bool]:
        ctx.background(work)
        return {"started": True}

    async with client(server, database=database_url) as http, asyncio.timeout(PATIENCE):
        assert (await http.get("/api/posts")).status_code == 200
        await done.wait()
        done.clear()
        assert data_of(await http.post("/api/start")) == {"started": True}
        await done.wait()


async def test_a_timeout_ends_what_it_was_waiting_for(sqlite_url: str) -> None:
    server = Server(query_timeout=0.1)
    server.register(Post)
    ended = asyncio.Event()

    def outer(ctx: Context, next: SyncNext) -> None:
        next()

    async def forever(ctx: Context, next: Next) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.pipeline.auth.register(outer)
    server.pipeline.service.register(forever)
    async with client(server, database=sqlite_url) as http, asyncio.timeout(PATIENCE):
        error_of(await http.get("/api/posts"), 504, "TIMEOUT")
        await ended.wait()


class Late:
    """A place where a thread is kept until the request it works for has ended."""

    def __init__(self) -> None:
        self.entered = 0
        self.refused = 0
        self._release = threading.Event()
        self._left = threading.Semaphore(0)

    def stay(self, then: Callable[[], Any]) -> None:
        self.entered += 1
        self._release.wait(30)
        try:
            then()
        except CancelledError:
            self.refused += 1
        finally:
            self._left.release()

    async def leave(self, times: int = 1) -> None:
        """Let them go, and wait until they have."""
        self._release.set()
        for _ in range(times):
            assert await asyncio.to_thread(self._left.acquire, timeout=30)


async def test_a_request_that_has_ended_is_not_continued(database_url: str) -> None:
    server = Server(query_timeout=0.3)
    server.register(Post)
    late = Late()

    def slow(ctx: Context, next: SyncNext) -> None:
        late.stay(next)

    server.pipeline.service.register(slow, operations=["create"])
    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/posts", json={"title": "a"}), 504, "TIMEOUT")
        await late.leave()
        assert (late.refused, await total(http, "/api/posts")) == (1, 0)


async def test_a_request_that_has_ended_is_not_continued_by_the_inner_of_two(sqlite_url: str) -> None:
    server = Server(query_timeout=0.3)
    server.register(Post)
    late = Late()

    def outer(ctx: Context, next: SyncNext) -> None:
        next()

    def inner(ctx: Context, next: SyncNext) -> None:
        late.stay(next)

    server.pipeline.auth.register(outer, operations=["create"])
    server.pipeline.service.register(inner, operations=["create"])
    async with client(server, database=sqlite_url) as http:
        error_of(await http.post("/api/posts", json={"title": "a"}), 504, "TIMEOUT")
        await late.leave()
        assert (late.refused, await total(http, "/api/posts")) == (1, 0)


async def test_a_handler_of_a_request_that_has_ended_starts_no_work(sqlite_url: str) -> None:
    server = Server(query_timeout=0.3)
    started: list[str] = []
    late = Late()

    async def work() -> None:
        started.append("work")

    @server.action("POST", "/start")
    def handler(ctx: Context) -> None:
        late.stay(lambda: ctx.background(work))

    async with client(server, database=sqlite_url) as http:
        error_of(await http.post("/api/start"), 504, "TIMEOUT")
        await late.leave()
    assert (late.refused, started) == (1, [])


async def test_a_thread_keeps_its_turn_when_its_request_has_ended(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "AT_ONCE", 2)
    server = Server(query_timeout=0.5)
    server.register(Post)
    late = Late()

    def slow(ctx: Context, next: SyncNext) -> None:
        late.stay(next)

    @server.action("GET", "/quick")
    def quick(ctx: Context) -> str:
        return "done"

    server.pipeline.service.register(slow)
    async with client(server, database=sqlite_url) as http:
        answers = await asyncio.gather(*(http.get("/api/posts") for _ in range(6)))
        assert [answer.status_code for answer in answers] == [504] * 6
        error_of(await http.get("/api/quick"), 504, "TIMEOUT")
        assert late.entered == 2
        await late.leave(times=2)
        assert data_of(await http.get("/api/quick")) == "done"


async def test_one_request_after_another_uses_one_thread(sqlite_url: str) -> None:
    server = blog()

    @server.action("GET", "/thread")
    def thread(ctx: Context) -> int:
        return threading.get_ident()

    async with client(server, database=sqlite_url) as http:
        seen = {data_of(await http.get("/api/thread")) for _ in range(20)}
    assert len(seen) == 1


async def test_what_a_thread_raises_that_no_future_can_carry_is_still_answered(sqlite_url: str) -> None:
    server = blog()

    @server.action("GET", "/next")
    def first_of_none(ctx: Context) -> Any:
        return next(iter(()))

    async with client(server, database=sqlite_url) as http, asyncio.timeout(PATIENCE):
        error_of(await http.get("/api/next"), 500, "PANIC")
