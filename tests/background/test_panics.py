"""Whatever a handler, hook or tick raises is its own failure: charged, logged, and nothing ends by it."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, field_validator

from maniflex import Run, Server
from maniflex._clock import SystemClock
from maniflex.background.jobs import InProcessQueue, Job
from maniflex.background.jobs import Worker as JobWorker
from maniflex.background.leases import Held, LeaseKeeper
from maniflex.background.loop import Loop
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.background.runs.handlers import RunHandlers
from maniflex.background.scheduled_fields.observers import Subscribers, SweepEvent
from maniflex.db.port import Tx
from maniflex.errors import Fatal
from maniflex.testing.clock import FakeClock
from tests.kit.internals import outbox_parts
from tests.kit.outbox import a_bench
from tests.kit.panics import NAMES, Panic, Speechless, panics
from tests.kit.processes import PROGRAMS, run_program
from tests.kit.runs import kinds, no_pause, working
from tests.kit.scheduled_fields import PAST, Post, a_newsroom, runner_of, stored
from tests.kit.waiting import eventually

OFTEN = timedelta(milliseconds=5)
log = logging.getLogger("maniflex.test")


def raise_panic(number: int) -> None:
    raise panics()[number]


# -- runs


class Strict(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check(cls, value: int) -> int:
        raise_panic(value)
        return value


def in_handler(server: Server) -> None:
    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        raise_panic(run.payload["n"])


def in_plain_handler(server: Server) -> None:
    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    def bad(run: Run) -> None:
        raise_panic(run.payload["n"])


def in_step(server: Server) -> None:
    async def step(n: int) -> None:
        raise_panic(n)

    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        await run.step("bad", step, run.payload["n"])


def in_steps_side_by_side(server: Server) -> None:
    """In tasks of their own, where SystemExit and KeyboardInterrupt would go on to the event loop."""

    async def step(n: int) -> None:
        await asyncio.sleep(0)
        raise_panic(n)

    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        await asyncio.gather(*(run.step(name, step, run.payload["n"]) for name in "ab"))


def in_plain_step(server: Server) -> None:
    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        await run.step("bad", raise_panic, run.payload["n"])


@pytest.mark.parametrize(
    "declare", [in_handler, in_plain_handler, in_step, in_steps_side_by_side, in_plain_step]
)
async def test_a_run_is_charged_for_whatever_its_handler_raises(
    server: Server, declare: Callable[[Server], None], caplog: pytest.LogCaptureFixture
) -> None:
    declare(server)
    async with working(server) as work:
        made = await work.submit_many("default.bad", [{"n": n} for n in range(len(NAMES))])
        worker = work.worker(concurrency=3)
        async with asyncio.timeout(60):
            await worker.drain()
        runs = [await work.get(run.id) for run in made]
        events = [await kinds(work, run.id) for run in made]
    assert [(run.status, run.attempt) for run in runs] == [("failed", 2)] * len(NAMES)
    for run, name in zip(runs, NAMES, strict=True):
        assert name in str(run.last_error)
        assert any(run.id in r.getMessage() and name in r.getMessage() for r in caplog.records)
    assert events == [["created", "leased", "retried", "leased", "failed"]] * len(NAMES)


async def test_a_run_is_charged_for_an_exception_whose_text_panics(server: Server) -> None:
    log: list[str] = []

    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        await run.step("book", log.append, "+", compensate=lambda _: log.append("-"))
        if run.payload["fatal"]:
            raise Fatal(Speechless(panics()[run.payload["n"]]))
        raise Speechless(panics()[run.payload["n"]])

    given = [{"n": n, "fatal": fatal} for n in range(len(NAMES)) for fatal in (False, True)]
    async with working(server) as work:
        made = await work.submit_many("default.bad", given)
        await work.worker().drain()
        runs = [await work.get(run.id) for run in made]
    ends = [(run.status, run.attempt, (run.error or {})["code"]) for run in runs]
    assert ends == [("failed", 2, "error"), ("failed", 1, "fatal")] * len(NAMES)
    assert sorted(log) == ["+"] * len(given) + ["-"] * len(given)


class Anonymous(str):
    """The name of a module that nobody can compare."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise Panic("compared")


async def test_a_run_that_the_engine_fails_takes_its_steps_back(server: Server) -> None:
    log: list[str] = []

    async def book(run: Run) -> None:
        await run.step("book", log.append, "+", compensate=lambda _: log.append("-"))

    scope: dict[str, Any] = {"__name__": Anonymous("nobody"), "book": book}
    exec("async def bad(run):\n    await book(run)\n    raise ValueError('no')", scope)
    server.work.handler("default.bad", max_attempts=2, backoff=no_pause)(scope["bad"])
    async with working(server) as work:
        made = await work.submit("default.bad")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.attempt, (done.error or {})["code"]) == ("failed", 2, "interrupted")
    assert log == ["+", "-"]


async def test_a_started_worker_goes_on_whatever_its_handlers_raise(database_url: str) -> None:
    server = Server(database_url, pool_size=4, work_poll_interval=timedelta(milliseconds=50))
    in_handler(server)
    async with working(server) as work:
        worker = work.worker()
        await worker.start()
        made = await work.submit_many("default.bad", [{"n": n} for n in range(len(NAMES))])
        for run in made:
            assert (await work.wait(run.id, 60)).status == "failed"
        assert [part.name for part in worker.parts_to_watch if part.dead] == []
        await worker.stop()


async def test_a_payload_whose_validator_panics_does_not_fit(server: Server) -> None:
    @server.work.handler("default.bad", payload=Strict)
    async def bad(run: Run) -> None: ...

    async with working(server) as work:
        made = await work.submit_many("default.bad", [{"n": n} for n in range(len(NAMES))])
        await work.worker().drain()
        runs = [await work.get(run.id) for run in made]
    for run, name in zip(runs, NAMES, strict=True):
        assert run.status == "failed"
        assert (run.error or {})["code"] == "payload_does_not_fit"
        assert name in str(run.last_error)


async def test_a_backoff_that_panics_costs_no_outcome(server: Server, clock: FakeClock) -> None:
    numbers = iter(range(len(NAMES)))

    def backoff(failures: int) -> timedelta:
        raise_panic(next(numbers))
        return timedelta(0)

    @server.work.handler("default.bad", backoff=backoff)
    async def bad(run: Run) -> None:
        raise ValueError

    async with working(server) as work:
        made = await work.submit_many("default.bad", range(len(NAMES)))
        assert await work.worker(concurrency=len(NAMES)).run_once() == len(NAMES)
        runs = [await work.get(run.id) for run in made]
    assert {(run.status, run.attempt) for run in runs} == {("pending", 1)}
    assert all(run.run_at > clock.now() for run in runs)


# -- the outbox


class Letter(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check(cls, value: int) -> int:
        raise_panic(value)
        return value


def by_handler(outbox: Outbox) -> None:
    @outbox.handler("bad")
    async def handle(message: Message) -> None:
        raise_panic(message.payload["n"])


def by_plain_handler(outbox: Outbox) -> None:
    @outbox.handler("bad")
    def handle(message: Message) -> None:
        raise_panic(message.payload["n"])


def by_validator(outbox: Outbox) -> None:
    @outbox.handler("bad", payload=Letter)
    async def handle(message: Message) -> None: ...


def by_text(outbox: Outbox) -> None:
    @outbox.handler("bad")
    async def handle(message: Message) -> None:
        raise Speechless(panics()[message.payload["n"]])


async def test_a_message_is_charged_for_an_exception_whose_text_panics(database_url: str) -> None:
    async with a_bench(database_url, by_text, outbox_max_attempts=1) as bench:
        await bench.enqueue(*(("bad", {"n": n}) for n in range(len(NAMES))))
        await bench.drain()
        rows = await bench.rows()
    assert [(row.status, row.last_error) for row in rows] == [("dead", "Speechless")] * len(NAMES)


async def test_a_log_that_panics_costs_no_outcome_of_a_message(database_url: str) -> None:
    numbers = iter(range(len(NAMES)))

    def panic(record: logging.LogRecord) -> bool:
        if "gave up" in record.getMessage():
            raise_panic(next(numbers))
        return True

    def declare(outbox: Outbox) -> None:
        @outbox.handler("bad")
        async def handle(message: Message) -> None:
            raise ValueError("no")

    async with a_bench(database_url, declare, outbox_max_attempts=1) as bench:
        parts, _ = outbox_parts(bench.outbox)
        parts.logger.addFilter(panic)
        try:
            await bench.enqueue(*(("bad", {"n": n}) for n in range(len(NAMES))))
            await bench.drain()
        finally:
            parts.logger.removeFilter(panic)
        rows = await bench.rows()
    assert [(row.status, row.attempts) for row in rows] == [("dead", 1)] * len(NAMES)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("declare", [by_handler, by_plain_handler, by_validator])
async def test_a_relay_charges_a_message_for_whatever_its_handler_raises_and_goes_on(
    database_url: str,
    declare: Callable[[Outbox], None],
    concurrency: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivered: list[Any] = []

    def both(outbox: Outbox) -> None:
        declare(outbox)

        @outbox.handler("good")
        async def good(message: Message) -> None:
            delivered.append(message.payload)

    async with a_bench(database_url, both, outbox_poll_interval=OFTEN) as bench:
        worker = bench.outbox.worker(concurrency=concurrency)
        await worker.start()
        for n in range(len(NAMES)):
            await bench.enqueue(("bad", {"n": n}), ("good", n))
        await eventually(lambda: len(delivered) == len(NAMES), patience=60)
        assert [part.name for part in worker.parts_to_watch if part.dead] == []
        await worker.stop()
        rows = [row for row in await bench.rows() if row.kind == "bad"]
    assert all(row.attempts >= 1 for row in rows)
    for row, name in zip(rows, NAMES, strict=True):
        assert name in str(row.last_error)
        assert any(row.id in r.getMessage() for r in caplog.records)


async def test_a_dead_letter_handler_that_panics_costs_no_message(database_url: str) -> None:
    def declare(outbox: Outbox) -> None:
        @outbox.handler("bad")
        async def handle(message: Message) -> None:
            raise ValueError("no")

        @outbox.dead_letter
        async def sink(message: Message, reason: str) -> None:
            raise_panic(message.payload["n"])

    async with a_bench(database_url, declare, outbox_max_attempts=1) as bench:
        await bench.enqueue(*(("bad", {"n": n}) for n in range(len(NAMES))))
        assert await bench.drain() == 0
        rows = await bench.rows()
    assert {row.status for row in rows} == {"pending"}
    for row, name in zip(rows, NAMES, strict=True):
        assert name in str(row.last_error)


# -- scheduled fields


async def test_a_sweep_goes_on_whatever_its_hooks_raise(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = iter(range(2 * len(NAMES)))
    told: list[str] = []

    async def on_set_field(model: str, id: str, name: str, to: Any) -> None:
        told.append(id)
        raise_panic(next(numbers) % len(NAMES))

    def on_delete(model: str, id: str) -> None:
        told.append(id)
        raise_panic(next(numbers) % len(NAMES))

    async with a_newsroom(database_url) as server:
        for _ in NAMES:
            await server.db(Post).create(publish_at=PAST)
            await server.db(Post).create(expires_at=PAST)
        runner = runner_of(
            server, interval=OFTEN, clock=SystemClock(), on_set_field=on_set_field, on_delete=on_delete
        )
        await runner.start()
        await eventually(lambda: len(told) == 2 * len(NAMES), patience=60)
        assert [part.name for part in runner.parts_to_watch if part.dead] == []
        await runner.stop()
        rows = await stored(server, "posts")
    assert sum(row["status"] == "published" for row in rows) == len(NAMES)
    assert sum(row["deleted_at"] is not None for row in rows) == len(NAMES)
    assert any("a hook of" in r.getMessage() for r in caplog.records)


async def test_a_record_that_makes_an_observer_panic_holds_up_no_other(database_url: str) -> None:
    async def observe(tx: Tx, swept: SweepEvent) -> None:
        for row in swept.before:
            if row["title"]:
                raise_panic(int(row["title"]))

    async with a_newsroom(database_url) as server:
        for n in range(len(NAMES)):
            await server.db(Post).create(title=str(n), publish_at=PAST)
            await server.db(Post).create(publish_at=PAST)
        report = await runner_of(server, batch=5, subscribers=Subscribers(observers=[observe])).sweep()
    assert (report.updated, report.skipped) == (len(NAMES), len(NAMES))
    assert sorted(f.message.split(":")[0].split()[0] for f in report.errors) == sorted(NAMES)


# -- jobs of a queue of their own


class Sink:
    async def put(self, job: Job, status: str, **about: Any) -> None:
        raise_panic(job.payload["n"])

    async def cancelled(self, id: str) -> None: ...

    async def forget(self, id: str) -> None: ...


class Bus:
    def publish(self, name: str, payload: dict[str, Any]) -> None:
        raise Panic(name)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_worker_of_jobs_goes_on_whatever_is_raised_around_a_job(plain: bool) -> None:
    clock, attempts = FakeClock(), list[int]()

    def backoff(failures: int) -> timedelta:
        raise Panic("in the backoff")

    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        raise_panic(job.payload["n"])

    def handle_plainly(job: Job) -> None:
        attempts.append(job.attempt)
        raise_panic(job.payload["n"])

    handlers = RunHandlers()
    handlers.add("bad", handle_plainly if plain else handle, backoff=backoff)
    queue = InProcessQueue(clock=clock)
    worker = JobWorker(queue, handlers, clock=clock, status=Sink(), event_bus=Bus())
    for n in range(len(NAMES)):
        await queue.enqueue(Job("bad", {"n": n}, max_retry=2))
    for _ in range(2):
        async with asyncio.timeout(60):
            await worker.drain()
        clock.advance(timedelta(hours=1))
    assert sorted(attempts) == sorted([1, 2] * len(NAMES))
    assert await queue.claim(["bad"], 10) == []


# -- loops


class Panicking(Loop):
    """Raises one panic after the other, then works."""

    name = "panicking"

    def __init__(self) -> None:
        super().__init__(SystemClock(), OFTEN, log)
        self.numbers = iter(range(len(NAMES)))
        self.worked = asyncio.Event()

    async def tick(self) -> bool:
        self.wake()
        for number in self.numbers:
            raise_panic(number)
        self.worked.set()
        return False


async def test_a_loop_survives_whatever_its_tick_raises(caplog: pytest.LogCaptureFixture) -> None:
    loop = Panicking()
    await loop.start()
    await asyncio.wait_for(loop.worked.wait(), 60)
    assert (loop.errors, loop.dead) == (len(NAMES), False)
    await loop.stop()
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "panicking: a tick failed; it goes on trying"
    ]


async def test_a_loop_ends_when_its_own_task_is_cancelled() -> None:
    class Waiting(Loop):
        async def tick(self) -> bool:
            await asyncio.Event().wait()
            return False

    loop = Waiting(SystemClock(), OFTEN, log)
    await loop.start()
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.stop(), 0.01)
    assert not loop.dead


class Mortal(Loop):
    """Dies of a mistake outside its tick, as often as it is told to."""

    name = "mortal"

    def __init__(self, deaths: int) -> None:
        super().__init__(SystemClock(), OFTEN, log)
        self.deaths = deaths

    async def tick(self) -> bool:
        return False

    def pause(self) -> timedelta:
        if self.deaths:
            self.deaths -= 1
            raise Panic("outside of the tick")
        return super().pause()


async def test_a_loop_that_died_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    loop = Mortal(deaths=1)
    await loop.start()
    await eventually(lambda: loop.dead)
    await eventually(lambda: not loop.dead and loop.ticks > 1)
    await loop.stop()
    assert "mortal: its task ended; it is begun again" in caplog.messages


class Away:
    """Where leases are kept, which nobody can reach."""

    def sibling(self) -> Away:
        return self

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def test_leases_are_renewed_whatever_a_renewal_raises() -> None:
    numbers, renewed = iter(range(len(NAMES))), asyncio.Event()
    here = asyncio.get_running_loop()

    async def renew(line: Away, held: Any) -> set[str]:
        for number in numbers:
            raise_panic(number)
        here.call_soon_threadsafe(renewed.set)
        return set()

    lease_keeper = LeaseKeeper(Away(), renew, timedelta(milliseconds=20), log)
    await lease_keeper.start()
    lease_keeper.hold(Held("a", "b"), lambda: None)
    await asyncio.wait_for(renewed.wait(), 60)
    assert not lease_keeper.dead
    await lease_keeper.stop()


# -- around the server


async def test_the_server_goes_on_whatever_its_hooks_raise(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    for number in range(len(NAMES)):
        server = Server(sqlite_url)

        async def go(number: int = number) -> None:
            raise_panic(number)

        def shut(number: int = number) -> None:
            raise_panic(number)

        server.go(go)
        server.on_shutdown(shut)
        server.on_shutdown(lambda: ended.append("the next"))
        async with server.lifespan():
            async with server.transaction() as tx:
                tx.after_commit(partial(raise_panic, number))
            await asyncio.sleep(0)
    assert ended == ["the next"] * len(NAMES)
    assert caplog.messages.count("on_shutdown failed") == len(NAMES)
    assert caplog.messages.count("an after-commit call failed") == len(NAMES)


async def test_live_knows_of_a_loop_that_died(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    loop = Mortal(deaths=1)
    server.add_service(loop)
    async with (
        server.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://test") as http,
    ):
        await eventually(lambda: loop.dead)
        answer = await http.get("/live")
        assert (answer.status_code, answer.json()) == (503, {"status": "unavailable", "work": "unavailable"})
        await eventually(lambda: not loop.dead)
        assert (await http.get("/live")).status_code == 200


def test_a_real_interrupt_stops_the_process_though_it_struck_in_a_handler(sqlite_url: str) -> None:
    with run_program(PROGRAMS / "interrupted.py", sqlite_url, errors=subprocess.DEVNULL) as program:
        assert program.hear() == "working"
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(60) == 9
