"""An attempt is over when its steps are: none goes on behind its back, none is done twice for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from maniflex import Run, Server
from maniflex.background.runs.step_memory import DoneStep, StepMemory
from maniflex.errors import Fatal, LeaseLost
from maniflex.testing.clock import FakeClock
from tests.kit.runs import minutes, no_pause, seconds, status, working
from tests.kit.waiting import eventually


class Effects:
    """Two steps side by side: one fails at once, the other has its effect a little later."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.log: list[str] = []
        self.failed = asyncio.Event()
        server.work.handler("default.two", backoff=no_pause, **options)(self.run)

    async def run(self, run: Run) -> str:
        await asyncio.gather(
            run.step("slow", self.slow, compensate=self.undo),
            run.step("bad", self.bad, run.attempt),
        )
        return "done"

    async def bad(self, attempt: int) -> None:
        if attempt == 1:
            self.failed.set()
            raise ValueError("no")

    async def slow(self) -> str:
        await self.failed.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        self.log.append("slow")
        return "slow"

    def undo(self, result: str) -> None:
        self.log.append(f"-{result}")


async def test_a_step_beside_one_that_fails_is_remembered_before_the_retry(server: Server) -> None:
    effects = Effects(server, max_attempts=2)
    async with working(server) as work:
        made = await work.submit("default.two")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.attempt, effects.log) == ("succeeded", 2, ["slow"])


async def test_a_step_beside_one_that_fails_for_good_is_taken_back(server: Server) -> None:
    effects = Effects(server, max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.two")
        await work.worker().drain()
        assert (await status(work, made.id), effects.log) == ("failed", ["slow", "-slow"])


async def test_a_step_nobody_waited_for_is_done_before_its_run_is(server: Server) -> None:
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def slow() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        log.append("slow")

    @server.work.handler("default.forgetful")
    async def forget(run: Run) -> None:
        tasks.append(asyncio.create_task(run.step("slow", slow)))
        await asyncio.sleep(0)

    async with working(server) as work:
        work.engine.observers.append(lambda id: log.append("settled"))
        await work.submit("default.forgetful")
        await work.worker().drain()
    assert log == ["slow", "settled"]


async def test_no_step_begins_once_the_attempt_is_over(server: Server) -> None:
    begun: list[str] = []
    late: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    @server.work.handler("default.late")
    async def handle(run: Run) -> None:
        await run.step("one", begun.append, "one")

        async def later() -> None:
            await over.wait()
            await run.step("two", begun.append, "two")

        late.append(asyncio.create_task(later()))

    async with working(server) as work:
        made = await work.submit("default.late")
        await work.worker().drain()
        over.set()
        with pytest.raises(LeaseLost):
            await late[0]
        assert (await status(work, made.id), begun) == ("succeeded", ["one"])


BEGINNINGS: dict[str, Callable[[Run, list[str]], Awaitable[Any]]] = {
    "step": lambda run, begun: run.step("late", begun.append, "late"),
    "submit": lambda run, begun: run.submit("default.child"),
    "call": lambda run, begun: run.call("default.child"),
    "signal": lambda run, begun: run.signal(run.id, "late"),
    "sleep": lambda run, begun: run.sleep(1),
    "wait_for": lambda run, begun: run.wait_for("late"),
}


@pytest.mark.parametrize("error", [ValueError("no"), Fatal("no")], ids=["error", "fatal"])
@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_nothing_begins_once_an_attempt_without_steps_has_failed(
    server: Server, begin: Callable[[Run, list[str]], Awaitable[Any]], error: Exception
) -> None:
    begun: list[str] = []
    late: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    async def branch(run: Run) -> None:
        await over.wait()
        await begin(run, begun)

    async def boom() -> None:
        raise error

    @server.work.handler("default.child")
    async def child(run: Run) -> None:
        begun.append("child")

    @server.work.handler("default.late", max_attempts=2, backoff=lambda failures: minutes(1))
    async def handle(run: Run) -> None:
        late.append(asyncio.create_task(branch(run)))
        await asyncio.gather(boom(), late[-1])

    async with working(server) as work:
        made = await work.submit("default.late")
        await work.worker().run_once()
        over.set()
        with pytest.raises(LeaseLost, match="this attempt is over"):
            await late[0]
        await work.worker().run_once()
        assert (begun, len(await work.list())) == ([], 1)
        assert await status(work, made.id) == ("failed" if isinstance(error, Fatal) else "pending")


class Threaded:
    """A plain step that does not return before it is told."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Event()
        self.lock = threading.Lock()
        self.calls = self.at_once = self.most = 0
        server.work.handler("default.plain", backoff=no_pause, **options)(self.run)

    async def run(self, run: Run) -> Any:
        return await run.step("plain", self.plain)

    def plain(self) -> int:
        with self.lock:
            self.calls += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self.begun.set()
        assert self.may_end.wait(60)
        with self.lock:
            self.at_once -= 1
            return self.calls


async def test_a_plain_step_past_its_time_has_no_second_copy_and_is_remembered(server: Server) -> None:
    plain = Threaded(server, timeout=timedelta(milliseconds=50), max_attempts=100)
    async with working(server) as work:
        made = await work.submit("default.plain")
        draining = asyncio.create_task(work.worker().drain())
        await eventually(plain.begun.is_set, "the step")
        done, _ = await asyncio.wait((draining,), timeout=0.5)
        assert not done
        assert await status(work, made.id) == "leased"
        plain.may_end.set()
        await draining
        run = await work.get(made.id)
    assert run.attempt > 1
    assert (run.status, run.result, plain.calls, plain.most) == ("succeeded", 1, 1, 1)


async def test_a_plain_step_is_told_that_its_time_is_up(server: Server) -> None:
    told: list[bool] = []

    @server.work.handler("default.polite", timeout=timedelta(seconds=1), max_attempts=1)
    async def handle(run: Run) -> None:
        def patient() -> None:
            waiting = threading.Event()
            for _ in range(6000):
                if run.cancelled:
                    break
                waiting.wait(0.01)
            told.append(run.cancelled)

        await run.step("patient", patient)

    async with working(server) as work:
        made = await work.submit("default.polite")
        await work.worker().drain()
        assert (await status(work, made.id), told) == ("failed", [True])


async def test_a_run_whose_plain_step_goes_on_is_not_handed_back(database_url: str) -> None:
    """Another worker would begin the same step while it still runs here."""
    server = Server(database_url, pool_size=4)
    plain = Threaded(server)
    async with working(server) as work:
        worker = work.worker()
        await worker.start()
        made = await work.submit("default.plain")
        await eventually(plain.begun.is_set, "the step")
        await worker.stop(timedelta(0))
        assert (await work.get(made.id)).status == "leased"
        plain.may_end.set()


async def test_a_step_that_never_ends_is_cancelled_with_the_worker(database_url: str) -> None:
    server = Server(database_url, pool_size=4)
    begun, ended = asyncio.Event(), list[str]()

    async def endless() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    @server.work.handler("default.endless")
    async def handle(run: Run) -> None:
        await asyncio.gather(run.step("endless", endless), run.step("bad", int, "x"))

    async with working(server) as work:
        worker = work.worker()
        await worker.start()
        made = await work.submit("default.endless")
        await asyncio.wait_for(begun.wait(), 30)
        await worker.stop(timedelta(0))
        assert ended == ["endless"]
        assert (await work.get(made.id)).status == "pending"


# -- while the database cannot be written to


@asynccontextmanager
async def nobody_remembers(url: str) -> AsyncIterator[None]:
    """Somebody has locked what runs remember, for longer than a statement waits."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(urlsplit(url).path[1:], isolation_level=None)
        file.execute("BEGIN IMMEDIATE")
        yield
        file.close()
    else:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute("LOCK TABLE workflow_step IN ACCESS EXCLUSIVE MODE")
            yield
        await connection.close()


@pytest.mark.parametrize("timeout", [None, seconds(0.3)])
async def test_what_a_step_returned_is_remembered_when_the_database_is_back(
    database_url: str, timeout: timedelta | None, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(database_url, pool_size=4, lock_timeout=timedelta(milliseconds=100))
    calls: list[int] = []
    locked: list[Any] = []
    runs: list[Run] = []

    async def effect() -> int:
        lock = nobody_remembers(database_url)
        await lock.__aenter__()
        locked.append(lock)
        calls.append(1)
        return len(calls)

    @server.work.handler("default.effect", timeout=timeout, backoff=no_pause)
    async def handle(run: Run) -> int:
        runs.append(run)
        return await run.step("effect", effect)

    async with working(server) as work:
        made = await work.submit("default.effect")
        worker = work.worker()
        await worker.start()
        await eventually(lambda: "cannot be reached yet" in caplog.text, "a try in vain")
        if timeout is not None:
            await eventually(lambda: runs[0].cancelled, "the end of its time")
        [lock] = locked
        await lock.__aexit__(None, None, None)
        done = await work.wait(made.id, 60)
        await worker.stop()
    assert (done.status, done.result, calls) == ("succeeded", 1, [1])
    assert done.attempt == (1 if timeout is None else 2)


async def test_to_remember_the_same_step_twice_is_to_remember_it_once(
    server: Server, clock: FakeClock
) -> None:
    """The answer to the first try may have been lost; the row of another is not ours."""

    @server.work.handler("default.none")
    async def none(run: Run) -> None: ...

    async with working(server) as work:
        await work.submit("default.none")
        [claimed] = await work.worker().claim(1)
        for _ in range(2):
            await StepMemory(work.engine.store, clock).keep(
                claimed.held, DoneStep("the id", "a", "a", None), 1
            )
        with pytest.raises(LeaseLost):
            await StepMemory(work.engine.store, clock).keep(
                claimed.held, DoneStep("another id", "a", "a", None), 2
            )
        assert await StepMemory(work.engine.store, clock).steps(claimed.id) == {"a": 1}
        clock.advance(minutes(1))
