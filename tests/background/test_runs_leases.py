"""Leases: renewed while a handler lives, taken back when it does not, and never written past."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta

import pytest

from maniflex import Run, Server
from maniflex.background.runs.api import Work
from maniflex.background.runs.outcomes import Done, Failed, Released, settle
from maniflex.background.runs.rows import ClaimedRun
from maniflex.errors import LeaseLost
from maniflex.testing.clock import FakeClock
from tests.kit.internals import ExpiredLeases
from tests.kit.runs import (
    is_free,
    kinds,
    minutes,
    no_pause,
    outlive_lease,
    seconds,
    status,
    succeeding,
    working,
)
from tests.kit.waiting import eventually

SHORT = seconds(0.6)


async def renewed(work: Work, claimed: ClaimedRun, until: datetime) -> bool:
    """Renew a lease; whether it was still ours."""
    found = await work.engine.store.renew(work.engine.store.adapter, [(claimed.held, until)])
    return claimed.id not in found.gone and not found.locked


async def test_a_lease_that_ran_out_is_an_attempt_and_the_run_starts_again(
    server: Server, clock: FakeClock
) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        dead = work.worker()
        await dead.claim(1)
        held = await work.get(made.id)
        assert (held.status, held.leased_by) == ("leased", dead.name)
        assert held.lease_until == clock.now() + seconds(30)

        clock.advance(seconds(30))
        assert await work.worker().drain() == 0
        clock.advance(timedelta(microseconds=1))
        assert await work.worker().drain() == 1

        done = await work.get(made.id)
        assert (done.status, done.attempt, done.last_error) == ("succeeded", 2, "lease_expired")
        assert [run.attempt for run in seen] == [2]
        assert await kinds(work, made.id) == ["created", "leased", "retried", "leased", "succeeded"]
        reaped = (await work.events(made.id))[2]
        assert reaped.data == {"attempt": 1, "worker": dead.name, "error": "lease_expired"}


async def test_a_run_that_keeps_killing_its_worker_ends_failed(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", max_attempts=3)
        for _ in range(3):
            assert len(await work.worker().claim(1)) == 1
            clock.advance(minutes(1))
            await work.engine.reap(clock.now())
        assert await work.worker().drain() == 0
        done = await work.get(made.id)
        assert (done.status, done.attempt, done.last_error) == ("failed", 3, "lease_expired")
        assert is_free(done)
        assert (await kinds(work, made.id))[-1] == "failed"


async def test_any_worker_takes_back_what_any_other_lost(server: Server, clock: FakeClock) -> None:
    succeeding(server, "a.x")
    succeeding(server, "b.x")
    async with working(server) as work:
        made = await work.submit("a.x")
        await work.worker(["a."]).claim(1)
        clock.advance(minutes(1))
        await work.worker(["b."]).run_once()
        assert await status(work, made.id) == "pending"


async def test_to_give_a_run_up_is_for_those_who_know_its_handler(
    database_url: str, server: Server, clock: FakeClock
) -> None:
    """Only they know its dead letters; when none is left, anybody does it."""
    succeeding(server)
    other = Server(database_url, clock=clock)
    succeeding(other, "other.ok")
    async with working(server) as work, working(other) as elsewhere:
        made = [await work.submit("default.ok", max_attempts=1) for _ in range(2)]
        await work.worker().claim(1)
        clock.advance(minutes(1))
        await elsewhere.worker(["other."]).run_once()
        assert await status(work, made[0].id) == "leased"
        await work.worker(["nothing."]).run_once()
        assert await status(work, made[0].id) == "failed"

        await work.worker().claim(1)
        clock.advance(minutes(6))
        await elsewhere.worker(["other."]).run_once()
        assert await status(work, made[1].id) == "failed"


async def test_a_deleted_run_of_a_dead_worker_does_not_keep_others_from_being_taken_back(
    server: Server, clock: FakeClock
) -> None:
    @server.work.handler("default.last", max_attempts=1, dead_letter="default.dead")
    async def last(run: Run) -> None: ...

    async with working(server) as work:
        deleted, other = await work.submit_many("default.last", range(2))
        assert len(await work.worker().claim(2)) == 2
        await work.delete(deleted.id)
        clock.advance(minutes(1))
        await work.engine.reap(clock.now())
        assert await status(work, other.id) == "failed"
        [letter] = await work.list(type="default.dead")
        assert isinstance(letter.payload, dict)
        assert letter.payload["run_id"] == other.id


async def test_a_clock_that_is_set_back_takes_nothing_away(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", "held")
        [held] = await work.worker().claim(1)
        until = (await work.get(made.id)).lease_until
        clock.move_to(clock.now() - minutes(60))
        assert await renewed(work, held, clock.now() + seconds(30))
        assert (await work.get(made.id)).lease_until == until
        await work.submit("default.ok", "new")
        assert await work.worker().drain() == 1
        clock.advance(minutes(62))
        await work.worker().drain()
    assert [run.payload for run in seen] == ["new", "held"]


async def test_a_lease_per_type(server: Server, clock: FakeClock) -> None:
    @server.work.handler("default.long", lease=minutes(10))
    async def long(run: Run) -> None: ...

    succeeding(server)
    async with working(server) as work:
        made = {type: await work.submit(type) for type in ("default.long", "default.ok")}
        await work.worker(lease=seconds(5)).claim(2)
        until = {type: (await work.get(run.id)).lease_until for type, run in made.items()}
    assert until["default.long"] == clock.now() + minutes(10)
    assert until["default.ok"] == clock.now() + seconds(5)


async def test_a_cancelled_run_whose_worker_died_keeps_its_status(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        await work.worker().claim(1)
        await work.cancel(made.id)
        clock.advance(minutes(1))
        assert await work.worker().drain() == 0
        done = await work.get(made.id)
        assert done.status == "cancelled"
        assert is_free(done)
        assert await kinds(work, made.id) == ["created", "leased", "cancelled"]


# -- fencing


async def taken_over(work: Work, clock: FakeClock) -> tuple[ClaimedRun, ClaimedRun]:
    """The claims of a worker that was given up and of its successor."""
    [old] = await work.worker().claim(1)
    clock.advance(minutes(1))
    await work.engine.reap(clock.now())
    [new] = await work.worker().claim(1)
    assert old.id == new.id
    assert old.held != new.held
    return old, new


@pytest.mark.parametrize(
    "outcome", [Done("1"), Failed("error", "x"), Failed("fatal", "x", final=True), Released()]
)
async def test_no_write_of_a_given_up_worker_is_taken(
    server: Server, clock: FakeClock, outcome: Done | Failed | Released
) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        old, new = await taken_over(work, clock)
        before = await work.get(made.id)
        change = settle(old, outcome, no_pause, clock.now())
        if change is None:
            assert await work.engine.store.succeed([(old.held, "1")], clock.now()) == set()
        else:
            assert await work.engine.store.settle([change], clock.now()) == set()
        assert not await renewed(work, old, clock.now() + minutes(9))
        assert await work.engine.store.let_go([old.held], clock.now()) == set()

        assert await work.get(made.id) == before
        assert await work.engine.store.succeed([(new.held, '"mine"')], clock.now()) == {made.id}
        done = await work.get(made.id)
        assert (done.status, done.result) == ("succeeded", "mine")


async def test_the_same_outcome_written_twice_counts_once(server: Server, clock: FakeClock) -> None:
    """The answer to a write may be lost; the worker then writes again."""
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        [held] = await work.worker().claim(1)
        assert await work.engine.store.succeed([(held.held, "1")], clock.now()) == {made.id}
        clock.advance(minutes(1))
        assert await work.engine.store.succeed([(held.held, "2")], clock.now()) == set()
        assert (await work.get(made.id)).result == 1
        assert await kinds(work, made.id) == ["created", "leased", "succeeded"]


async def test_renewal_extends_and_never_shortens(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        [held] = await work.worker().claim(1)
        for until, expected in (
            (minutes(5), minutes(5)),
            (minutes(2), minutes(5)),
            (minutes(-9), minutes(5)),
        ):
            assert await renewed(work, held, clock.now() + until)
            assert (await work.get(made.id)).lease_until == clock.now() + expected


async def test_a_handler_that_lost_its_run_learns_it_by_its_heartbeat_and_its_steps(
    server: Server, clock: FakeClock
) -> None:
    learned: list[str] = []

    @server.work.handler("default.zombie")
    async def zombie(run: Run) -> str:
        if run.attempt > 1:
            return "the second"
        clock.advance(minutes(1))
        assert await server.work.worker().run_once() == 1
        with pytest.raises(LeaseLost):
            await run.heartbeat()
        run.cancelled = False
        try:
            await run.step("late", lambda: learned.append("effect"))
        except LeaseLost:
            learned.append("lost")
            raise
        return "the first"

    async with working(server) as work:
        made = await work.submit("default.zombie")
        await work.worker().run_once()
        done = await work.get(made.id)
        assert (done.status, done.result, done.attempt) == ("succeeded", "the second", 2)
        assert learned == ["effect", "lost"]
        assert await server.raw_query("SELECT name FROM workflow_step") == []
        assert work.environment.metrics.value("runs_lease_losses_total") == 1


async def test_a_run_whose_lease_ended_before_it_could_begin_is_not_begun(
    server: Server, clock: FakeClock
) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        slow, quick = work.worker(), work.worker()
        [claimed] = await slow.claim(1)
        clock.advance(minutes(1))
        assert await quick.drain() == 1
        await slow.begin([claimed])[0].task
        await slow.settler.flush()
        assert [run.attempt for run in seen] == [2]
        assert await status(work, made.id) == "succeeded"


# -- in real time


@pytest.fixture
def real(database_url: str) -> Server:
    return Server(database_url, pool_size=4, work_poll_interval=timedelta(milliseconds=50))


async def test_a_handler_longer_than_its_lease_keeps_it(real: Server) -> None:
    starts: list[int] = []

    @real.work.handler("default.long")
    async def long(run: Run) -> None:
        starts.append(run.attempt)
        await outlive_lease(real.work, run.id, SHORT)

    async with working(real) as work:
        workers = [work.worker(lease=SHORT) for _ in range(2)]
        for worker in workers:
            await worker.start()
        made = await work.submit("default.long")
        done = await work.wait(made.id, 20)
        for worker in workers:
            await worker.stop()
        assert (done.status, done.attempt, starts) == ("succeeded", 1, [1])


async def test_a_blocked_loop_costs_neither_the_blocker_nor_its_neighbours_their_leases(real: Server) -> None:
    """One handler blocks for three leases; runs that were claimed with it, ended before it or wait for
    the loop behind it start once all the same. The other worker is in another thread, with its own loop.
    """
    starts: list[int] = []
    unblocked = asyncio.Event()

    @real.work.handler("default.block")
    async def block(run: Run) -> None:
        starts.append(run.payload)
        if run.payload == 3:
            time.sleep(3 * SHORT.total_seconds())  # noqa: ASYNC251  # to block is the point
            unblocked.set()
        elif run.payload % 2:
            await unblocked.wait()

    other = Server(real.config.database, work_poll_interval=timedelta(milliseconds=50))
    other.work.handler("default.block")(block)
    up, stop = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with working(other) as work:
            rival = work.worker(lease=SHORT)
            rival.claimer.ranges = [("nothing", "nothinh")]  # it only looks for leases that ran out
            await rival.start()
            up.set()
            await eventually(stop.is_set, "the end")
            await rival.stop()
            assert work.environment.metrics.value("runs_reclaimed_total") == 0

    async with working(real) as work:
        made = await work.submit_many("default.block", range(8))
        rival = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
        await asyncio.to_thread(up.wait)
        worker = work.worker(lease=SHORT)
        await worker.start()
        done = [await work.wait(run.id, 20) for run in made]
        await worker.stop()
        stop.set()
        await rival
        assert sorted(starts) == list(range(8))
        assert {(run.status, run.attempt) for run in done} == {("succeeded", 1)}


async def test_a_handler_is_told_that_it_was_cancelled_without_asking(real: Server) -> None:
    seen: list[str] = []

    @real.work.handler("default.loop")
    async def until_told(run: Run) -> None:
        await real.work.cancel(run.id)
        await eventually(lambda: run.cancelled, "being told")
        seen.append("told")

    async with working(real) as work:
        worker = work.worker(lease=SHORT)
        await worker.start()
        made = await work.submit("default.loop")
        await eventually(lambda: seen, "the handler's end")
        await worker.stop()
        assert is_free(await work.get(made.id))
        assert await status(work, made.id) == "cancelled"


async def test_a_run_that_is_locked_costs_the_others_no_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's open transaction holds one row for several leases; the heart does not wait for it."""
    server = Server(postgres_url, pool_size=6, work_poll_interval=timedelta(milliseconds=50))
    expired = ExpiredLeases(monkeypatch)
    starts: list[int] = []
    go = asyncio.Event()

    @server.work.handler("default.long")
    async def long(run: Run) -> None:
        starts.append(run.payload)
        await go.wait()

    async with working(server) as work:
        workers = [work.worker(lease=SHORT, concurrency=5) for _ in range(2)]
        made = await work.submit_many("default.long", range(5))
        for worker in workers:
            await worker.start()
        await eventually(lambda: len(starts) == 5, "all to start")
        async with server.transaction():
            await work.signal(made[0].id, "never heard")
            await outlive_lease(work, made[1].id, SHORT)
            await expired.seen_by(workers, times=3)
        go.set()
        done = [await work.wait(run.id, 20) for run in made]
        for worker in workers:
            await worker.stop()
    assert {(run.status, run.attempt) for run in done} == {("succeeded", 1)}


async def test_renewing_and_settling_never_wait_for_each_other_in_a_circle(postgres_url: str) -> None:
    server = Server(postgres_url, pool_size=6)

    @server.work.handler("default.quick")
    async def quick(run: Run) -> None:
        await asyncio.sleep(run.payload % 7 / 100)

    async with working(server) as work:
        made = await work.submit_many("default.quick", range(1500))
        worker = work.worker(lease=seconds(0.03), concurrency=200)
        worker.leases.by_type = {"default.quick": seconds(60)}  # renewed every 10 ms, and never too late
        await worker.start()
        for run in made:
            await work.wait(run.id, 60)
        await worker.stop()
        assert work.environment.metrics.value("runs_settle_errors_total") == 0
        assert work.environment.metrics.value("runs_heartbeat_errors_total") == 0
        assert {run.attempt for run in await work.list(limit=1500)} == {1}
