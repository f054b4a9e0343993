"""What holds a worker up, locks, outages, lost answers and hasty stops, costs nobody a run."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import pytest

from maniflex import Run, Server
from maniflex.background.runs.rows import ClaimCursor, ClaimTerms
from maniflex.background.runs.settler import RETRY_DELAY
from maniflex.errors import DatabaseError, DeclarationError, Fatal, TransactionError
from maniflex.testing.clock import FakeClock
from tests.kit.internals import ExpiredLeases
from tests.kit.runs import (
    is_free,
    kinds,
    minutes,
    outlive_lease,
    seconds,
    status,
    succeeding,
    working,
)
from tests.kit.waiting import eventually

SHORT = seconds(0.6)
OFTEN = timedelta(milliseconds=50)
TRIES = 3


def hearts() -> int:
    return sum(thread.name == "maniflex-heart" for thread in threading.enumerate())


def waiting(server: Server, go: asyncio.Event) -> list[int]:
    """A handler that waits to be told; the attempts it was begun in."""
    starts: list[int] = []

    @server.work.handler("default.wait")
    async def wait(run: Run) -> None:
        starts.append(run.attempt)
        await go.wait()

    return starts


# -- stopping


async def test_a_stop_that_is_cut_short_renews_nothing_any_more(database_url: str) -> None:
    server = Server(database_url, work_poll_interval=OFTEN)
    starts, before = waiting(server, asyncio.Event()), hearts()
    async with working(server) as work:
        worker = work.worker(lease=SHORT)
        await worker.start()
        made = await work.submit("default.wait")
        await eventually(lambda: starts, "the start")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.stop(minutes(1)), 0.2)
        assert (hearts(), worker.busy) == (before, 0)
        await eventually(lambda: _is_expired(server), "the end of the lease")
        assert await status(work, made.id) == "leased"


async def _is_expired(server: Server) -> bool:
    return await server.work.engine.store.has_expired(server.work.clock.now())


async def test_a_drain_that_cannot_write_renews_nothing_any_more(database_url: str) -> None:
    server = Server(database_url)
    before = hearts()

    @server.work.handler("default.away")
    async def away(run: Run) -> None:
        await server.raw_exec("ALTER TABLE workflow_run RENAME TO away")

    async with working(server) as work:
        await work.submit("default.away")
        with pytest.raises(DatabaseError):
            await work.worker().drain()
        assert hearts() == before


# -- held up


async def test_a_run_is_not_taken_over_because_somebody_had_its_row_locked(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(postgres_url, pool_size=6, work_poll_interval=OFTEN)
    expired = ExpiredLeases(monkeypatch)
    go = asyncio.Event()
    starts = waiting(server, go)
    async with working(server) as work:
        workers = [work.worker(lease=SHORT) for _ in range(2)]
        for worker in workers:
            await worker.start()
        made = await work.submit("default.wait")
        await eventually(lambda: starts, "the start")
        for _ in range(3):
            async with server.transaction():
                await work.signal(made.id, "never heard")
                await expired.seen_by(workers, times=3)
        go.set()
        done = await work.wait(made.id, 20)
        for worker in workers:
            await worker.stop()
        assert (done.status, done.attempt, starts) == ("succeeded", 1, [1])
        assert await kinds(work, made.id) == ["created", "leased", "succeeded"]


async def test_a_run_is_not_taken_over_because_somebody_had_the_file_locked(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(sqlite_url, work_poll_interval=OFTEN)
    expired = ExpiredLeases(monkeypatch)
    go = asyncio.Event()
    starts = waiting(server, go)
    async with working(server) as work:
        workers = [work.worker(lease=SHORT) for _ in range(2)]
        for worker in workers:
            await worker.start()
        made = await work.submit("default.wait")
        await eventually(lambda: starts, "the start")
        for _ in range(3):
            connection = sqlite3.connect(urlsplit(sqlite_url).path[1:], isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            await expired.seen_by(workers)
            connection.close()
            await outlive_lease(work, made.id, SHORT, times=1)
        go.set()
        done = await work.wait(made.id, 20)
        for worker in workers:
            await worker.stop()
        assert (done.status, done.attempt, starts) == ("succeeded", 1, [1])


async def test_a_locked_run_does_not_hold_up_what_became_of_others(postgres_url: str) -> None:
    server = Server(postgres_url, pool_size=6)
    go = asyncio.Event()
    starts = waiting(server, go)
    succeeding(server)

    @server.work.handler("default.bad")
    async def bad(run: Run) -> None:
        raise Fatal("no")

    @server.work.handler("default.pause")
    async def pause(run: Run) -> None:
        await run.wait_for("never")

    async with working(server) as work:
        worker = work.worker()
        await worker.start()
        held = await work.submit("default.wait")
        await eventually(lambda: starts, "the start")
        async with server.transaction():
            await work.signal(held.id, "never heard")
            go.set()
            other = asyncio.create_task(_outcomes(server))
            assert await asyncio.wait_for(other, 20) == ["succeeded", "failed", "pending"]
        assert (await work.wait(held.id, 20)).attempt == 1
        await worker.stop()
        assert work.environment.metrics.value("runs_lease_losses_total") == 0


async def _outcomes(server: Server) -> list[str]:
    """What became of one run of each kind, asked by somebody else than the open transaction."""
    elsewhere = Server(server.config.database)
    elsewhere.work.enable()
    async with working(elsewhere) as work:
        ok, bad, pause = [await work.submit(f"default.{kind}") for kind in ("ok", "bad", "pause")]
        ended = [(await work.wait(run.id, 20)).status for run in (ok, bad)]

        async def waits() -> bool:
            return (await work.get(pause.id)).waiting_for is not None

        await eventually(waits, "the run to wait")
        return [*ended, await status(work, pause.id)]


async def test_a_worker_that_has_just_started_gives_the_living_time_to_renew(
    server: Server, clock: FakeClock
) -> None:
    """It cannot know whether it starts after an outage that held up everybody."""
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        [held] = await work.worker().claim(1)
        clock.advance(minutes(1))
        worker = work.worker()
        await worker.start()
        await eventually(lambda: worker.rescuer.ticks, "a look")
        assert await work.engine.store.owns(held.held)

        async def taken_back() -> bool:
            clock.advance(seconds(0.5))
            return (await work.get(made.id)).finished

        started = clock.now()
        await eventually(taken_back, "the run to be taken back")
        assert clock.now() - started > worker.leases.beat_interval
        assert (await work.get(made.id)).attempt == 2
        await worker.stop()


# -- answers that are lost


async def test_an_outcome_that_was_taken_though_its_answer_was_lost_counts(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    told: list[str] = []
    async with working(server) as work:
        work.engine.observers.append(told.append)
        good, bad = await work.submit_many("default.ok", range(2))
        worker = work.worker()
        first, second = await worker.claim(2)
        await work.engine.store.succeed([(first.held, "1")], clock.now())
        worker.settler.succeed(first, "1")
        worker.settler.succeed(second, "1")
        await worker.settler.flush()
        assert {await status(work, run.id) for run in (good, bad)} == {"succeeded"}
        assert sorted(told) == sorted([good.id, bad.id])
        assert work.environment.metrics.value("runs_succeeded_total") == 2
        assert work.environment.metrics.value("runs_lease_losses_total") == 0
        assert worker.settler.waiting == 0


async def test_a_claim_whose_answer_was_lost_is_begun_all_the_same(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", max_attempts=1)
        worker = work.worker()
        ranges, name, lease = worker.claimer.ranges, worker.name, worker.leases.usual
        terms = ClaimTerms(ranges, 1, name, clock.now(), lease, {}, "the token")
        assert await work.engine.store.claim(terms, ClaimCursor())
        worker.claimer.unanswered["the token"] = clock.now() + worker.leases.usual
        assert await worker.drain() == 1
        done = await work.get(made.id)
        assert (done.status, done.attempt, len(seen)) == ("succeeded", 1, 1)
        clock.advance(worker.leases.usual)  # until then, what was sent may still be on its way
        assert await worker.drain() == 0
        assert worker.claimer.unanswered == {}


async def test_an_outcome_that_is_refused_is_not_tried_without_pause(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        await work.submit_many("default.ok", range(3))
        worker = work.worker()
        claimed = await worker.claim(3)
        if server.config.database.startswith("sqlite"):
            await server.raw_exec(
                "CREATE TRIGGER refuse BEFORE UPDATE ON workflow_run WHEN new.result = 'not json'"
                " BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        for one in claimed:
            worker.settler.succeed(one, "not json")
        began = time.monotonic()
        await worker.settler.start()
        errors = partial(work.environment.metrics.value, "runs_settle_errors_total")
        await eventually(lambda: errors() >= 3 * TRIES, "tries of each outcome")
        passed = time.monotonic() - began
        worker.settler.give_up()
        pauses = sum(RETRY_DELAY * 2**n for n in range(1, TRIES))  # twice as long each time
        assert passed >= pauses - RETRY_DELAY / 2
        assert worker.settler.waiting == 3


# -- one round


async def test_one_round_keeps_its_leases_too(database_url: str) -> None:
    server = Server(database_url)
    starts: list[int] = []
    go = asyncio.Event()

    @server.work.handler("default.long")
    async def long(run: Run) -> None:
        starts.append(run.attempt)
        await go.wait()

    async with working(server) as work:
        made = await work.submit("default.long")
        before = hearts()
        one = asyncio.create_task(work.worker(lease=SHORT).run_once())
        await eventually(lambda: starts, "the start")
        for _ in range(3):
            await outlive_lease(work, made.id, SHORT, times=1)
            assert await work.worker(lease=SHORT).run_once() == 0
        go.set()
        assert await one == 1
        assert (starts, hearts()) == ([1], before)
        assert is_free(await work.get(made.id))


async def test_a_worker_refuses_to_work_inside_a_transaction(server: Server) -> None:
    """A rollback would take back what it wrote down about work that was done."""
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        for call in (work.worker().run_once, work.worker().drain):
            async with server.transaction():
                with pytest.raises(TransactionError, match="inside a transaction"):
                    await call()
        assert (await status(work, made.id), seen) == ("pending", [])


async def test_an_empty_prefix_is_refused(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        with pytest.raises(DeclarationError, match="prefix"):
            work.worker([""])
