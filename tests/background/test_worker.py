"""Workers in real time: picking up, stopping, surviving the database, pruning and counting."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import asyncpg
import pytest

from maniflex import Run, Server
from maniflex.background.runs.api import Work
from maniflex.background.runs.claimer import Pruner
from maniflex.background.runs.worker import RunWorker
from maniflex.errors import Unavailable
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.postgres import terminate
from tests.kit.runs import is_free, kinds, minutes, no_pause, seconds, status, succeeding, working
from tests.kit.waiting import eventually, until

T = TypeVar("T")
PATIENCE = 30


@pytest.fixture
def real(database_url: str) -> Server:
    """By the clock of the machine; polling so rarely that only a wake-up explains a quick start."""
    return Server(database_url, pool_size=4, work_poll_interval=timedelta(minutes=5))


@asynccontextmanager
async def started(work: Work, **options: Any) -> AsyncIterator[RunWorker]:
    worker = work.worker(**options)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


# -- picking up


async def test_a_submitted_run_is_picked_up_without_polling(real: Server) -> None:
    succeeding(real)
    async with working(real) as work, started(work):
        for _ in range(3):
            made = await work.submit("default.ok")
            assert (await work.wait(made.id, PATIENCE)).status == "succeeded"


async def test_a_run_submitted_by_another_process_is_picked_up_without_polling(real: Server) -> None:
    succeeding(real)
    other = Server(real.config.database)
    other.work.enable()
    async with working(real) as work, working(other) as elsewhere, started(work):
        made = await elsewhere.submit("default.ok")
        assert (await work.wait(made.id, PATIENCE)).status == "succeeded"
        async with other.transaction():
            later = await elsewhere.submit("default.ok")
        assert (await work.wait(later.id, PATIENCE)).status == "succeeded"
        again = await elsewhere.submit("default.ok", delay=minutes(60))
        await elsewhere.cancel(again.id)
        await elsewhere.retry(again.id)
        assert (await work.wait(again.id, PATIENCE)).status == "succeeded"


async def waits(work: Work, id: str) -> bool:
    return (await work.get(id)).waiting_for is not None


async def test_a_signal_from_another_process_is_picked_up_without_polling(real: Server) -> None:
    @real.work.handler("default.wait")
    async def wait(run: Run) -> Any:
        return await run.wait_for("go")

    other = Server(real.config.database)
    other.work.enable()
    async with working(real) as work, working(other) as elsewhere, started(work):
        made = await work.submit("default.wait")
        await eventually(lambda: waits(work, made.id), "the run to wait")
        await elsewhere.signal(made.id, "go", 5)
        assert (await work.wait(made.id, PATIENCE)).result == 5


async def test_a_schema_has_wake_ups_of_its_own(postgres_url: str) -> None:
    servers = [Server(postgres_url, schema=name, work_poll_interval=minutes(5)) for name in ("one", "two")]
    seen = [succeeding(server) for server in servers]
    async with working(servers[0]) as first, working(servers[1]) as second, started(first), started(second):
        made = await first.submit("default.ok")
        assert (await first.wait(made.id, PATIENCE)).status == "succeeded"
    assert [len(runs) for runs in seen] == [1, 0]


async def test_behind_a_pooler_nobody_is_woken_and_polling_does_it(postgres_url: str) -> None:
    server = Server(postgres_url, pooler=True, work_poll_interval=timedelta(milliseconds=50))
    succeeding(server)
    other = Server(postgres_url)
    other.work.enable()
    async with working(server) as work, working(other) as elsewhere, started(work):
        made = await elsewhere.submit("default.ok", {"n": 1})
        assert (await work.wait(made.id, PATIENCE)).result == {"payload": {"n": 1}}


async def test_the_next_of_a_group_starts_when_the_one_before_has_ended(real: Server) -> None:
    succeeding(real)
    async with working(real) as work, started(work):
        made = await work.submit_many("default.ok", range(20), group_key="g")
        for run in made:
            assert (await work.wait(run.id, PATIENCE)).status == "succeeded"


async def test_a_parent_goes_on_when_its_child_is_done(real: Server) -> None:
    @real.work.handler("default.parent")
    async def parent(run: Run) -> Any:
        return await run.call("default.ok", 3)

    succeeding(real)
    async with working(real) as work, started(work, concurrency=1):
        made = await work.submit("default.parent")
        assert (await work.wait(made.id, PATIENCE)).result == {"payload": 3}


async def test_a_slow_run_does_not_stop_the_others(real: Server) -> None:
    go = asyncio.Event()

    @real.work.handler("default.slow")
    async def slow(run: Run) -> None:
        await go.wait()

    succeeding(real)
    async with working(real) as work, started(work, concurrency=2):
        held = await work.submit("default.slow")
        made = await work.submit_many("default.ok", range(50))
        for run in made:
            assert (await work.wait(run.id, PATIENCE)).status == "succeeded"
        assert await status(work, held.id) == "leased"
        go.set()
        assert (await work.wait(held.id, PATIENCE)).status == "succeeded"


async def test_concurrency_is_used_and_not_exceeded(real: Server) -> None:
    all_places_taken = asyncio.Barrier(4)
    running = most = 0

    @real.work.handler("default.count")
    async def count(run: Run) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await all_places_taken.wait()
        running -= 1

    async with working(real) as work, started(work, concurrency=4):
        made = await work.submit_many("default.count", range(40))
        for run in made:
            await work.wait(run.id, PATIENCE)
    assert most == 4


async def test_plain_functions_run_beside_each_other_off_the_loop(real: Server) -> None:
    barrier = threading.Barrier(3)
    threads: set[int] = set()

    @real.work.handler("default.plain")
    def plain(run: Run) -> None:
        threads.add(threading.get_ident())
        barrier.wait(PATIENCE)

    async with working(real) as work, started(work, concurrency=3):
        made = await work.submit_many("default.plain", range(3))
        assert {(await work.wait(run.id, PATIENCE)).status for run in made} == {"succeeded"}
    assert len(threads) == 3


async def test_a_serving_process_works_unless_told_not_to(database_url: str) -> None:
    for background in (True, False):
        server = Server(database_url, background=background)
        seen = succeeding(server)
        async with server.lifespan():
            made = await server.work.submit("default.ok")
            if background:
                assert (await server.work.wait(made.id, PATIENCE)).status == "succeeded"
            else:
                assert server.work.engine.workers == []
        assert len(seen) == int(background)


async def test_one_server_lives_several_times_and_two_live_side_by_side(database_url: str) -> None:
    server, other = Server(database_url), Server(database_url)
    seen, others = succeeding(server, "mine.ok"), succeeding(other, "other.ok")
    for _ in range(2):
        async with (
            client(server, database=database_url, background=True),
            client(other, database=database_url, background=True),
        ):
            mine = await server.work.submit("mine.ok")
            theirs = await server.work.submit("other.ok")
            assert (await server.work.wait(mine.id, PATIENCE)).status == "succeeded"
            assert (await other.work.wait(theirs.id, PATIENCE)).status == "succeeded"
        assert (server.work.engine.workers, other.work.engine.workers) == ([], [])
    assert (len(seen), len(others)) == (2, 2)


async def test_a_sealed_server_lent_to_another_database_comes_back_to_its_own(database_url: str) -> None:
    server = Server(database_url)
    succeeding(server)
    server.seal()
    async with client(server):
        await server.work.submit("default.ok")
    async with working(server) as work:
        assert await work.list() == []
        made = await work.submit("default.ok")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"


# -- stopping


async def test_stopping_lets_runs_finish_and_claims_no_more(real: Server) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @real.work.handler("default.slow")
    async def slow(run: Run) -> str:
        began.set()
        await go.wait()
        return "finished"

    async with working(real) as work:
        async with started(work, concurrency=1) as worker:
            first = await work.submit("default.slow")
            second = await work.submit("default.slow")
            await began.wait()
            stop = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)  # from here on it stops
            go.set()
            await stop
        done = await work.get(first.id)
        assert (done.status, done.result) == ("succeeded", "finished")
        assert is_free(done)
        assert await status(work, second.id) == "pending"


async def test_what_does_not_finish_is_handed_back_without_costing_an_attempt(real: Server) -> None:
    began = asyncio.Event()
    stopped: list[str] = []

    @real.work.handler("default.slow")
    async def slow(run: Run) -> None:
        if run.attempt > 1 or stopped:
            return
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(run.id)

    async with working(real) as work:
        async with started(work) as worker:
            made = await work.submit("default.slow", max_attempts=1)
            await began.wait()
            await worker.stop(seconds(0.05))
        back = await work.get(made.id)
        assert (back.status, back.attempt, stopped) == ("pending", 0, [made.id])
        assert is_free(back)
        assert await kinds(work, made.id) == ["created", "leased", "released"]
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"


async def test_a_plain_function_that_goes_on_is_not_given_to_another_worker(real: Server) -> None:
    """It cannot be stopped, so the run stays its own until its lease ends."""
    began, go = threading.Event(), threading.Event()

    @real.work.handler("default.deaf")
    def deaf(run: Run) -> None:
        began.set()
        go.wait(PATIENCE)

    async with working(real) as work, started(work) as worker:
        made = await work.submit("default.deaf")
        await asyncio.to_thread(began.wait)
        await worker.stop(seconds(0.05))
        assert await status(work, made.id) == "leased"
        go.set()


async def test_a_plain_function_that_stops_when_told_is_handed_back(real: Server) -> None:
    began = threading.Event()

    @real.work.handler("default.polite")
    def polite(run: Run) -> str:
        began.set()
        until(lambda: run.cancelled, "being told")
        return "half of it"

    async with working(real) as work:
        async with started(work) as worker:
            made = await work.submit("default.polite")
            await asyncio.to_thread(began.wait)
            await worker.stop(seconds(0.05))
        back = await work.get(made.id)
        assert (back.status, back.attempt, back.result) == ("pending", 0, None)


async def test_a_hung_database_cannot_hold_up_the_shutdown(postgres_url: str) -> None:
    server = Server(postgres_url, shutdown_timeout=timedelta(seconds=2), work_lease=timedelta(seconds=1))
    ran = asyncio.Event()

    @server.work.handler("default.ok")
    async def ok(run: Run) -> None:
        await hang()
        ran.set()

    connection: asyncpg.Connection = await asyncpg.connect(postgres_url)

    async def hang() -> None:
        await connection.execute("BEGIN; LOCK TABLE workflow_run IN ACCESS EXCLUSIVE MODE")

    async with server.lifespan():
        await server.work.submit("default.ok")
        await asyncio.wait_for(ran.wait(), PATIENCE)
        began = time.monotonic()
    assert time.monotonic() - began < PATIENCE  # the lock is held until after it
    await connection.close()


# -- a database that goes away


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What a caller does whose connection was cut as well."""
    for _ in range(20):
        with suppress(Unavailable):
            return await call()
    raise AssertionError("the database stays away")


async def test_an_outcome_outlives_the_connections_it_was_to_be_written_on(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(postgres_url, work_poll_interval=timedelta(milliseconds=50))

    @server.work.handler("default.cut")
    async def cut(run: Run) -> str:
        await terminate(postgres_url)
        return "kept"

    async with working(server) as work, started(work):
        for number in range(3):
            made = await patiently(partial(work.submit, "default.cut", idempotency_key=f"{number}"))
            done = await patiently(partial(work.wait, made.id, PATIENCE))
            assert (done.status, done.result, done.attempt) == ("succeeded", "kept", 1)


async def test_a_worker_counts_and_survives_failing_polls(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(database_url, work_poll_interval=timedelta(milliseconds=20))
    succeeding(server)
    async with working(server) as work, started(work):
        await server.raw_exec("ALTER TABLE workflow_run RENAME TO away")
        await eventually(
            lambda: work.environment.metrics.value("runs_poll_errors_total") >= 3, "failed polls"
        )
        await server.raw_exec("ALTER TABLE away RENAME TO workflow_run")
        made = await work.submit("default.ok")
        assert (await work.wait(made.id, PATIENCE)).status == "succeeded"
    told = [r for r in caplog.records if r.levelno >= logging.ERROR and "a tick failed" in r.message]
    assert 1 <= len(told) <= 4  # once per streak, not once per poll


async def test_an_outcome_waits_until_the_database_takes_it(database_url: str) -> None:
    server = Server(database_url, work_poll_interval=timedelta(milliseconds=20))

    @server.work.handler("default.away")
    async def away(run: Run) -> str:
        await server.raw_exec("ALTER TABLE workflow_event RENAME TO away")
        return "kept"

    async with working(server) as work, started(work):
        made = await work.submit("default.away")
        await eventually(
            lambda: work.environment.metrics.value("runs_settle_errors_total"), "a refused outcome"
        )
        await server.raw_exec("ALTER TABLE away RENAME TO workflow_event")
        done = await work.wait(made.id, PATIENCE)
        assert (done.result, done.attempt) == ("kept", 1)


async def test_an_outcome_that_is_refused_does_not_keep_the_others_waiting(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit_many("default.ok", range(4))
        worker = work.worker()
        claimed = await worker.claim(4)
        for one in claimed:
            worker.settler.succeed(one, "not json" if one.id == made[1].id else "1")
        if not server.config.database.startswith("postgres"):  # which looks at what it is given
            await server.raw_exec(
                "CREATE TRIGGER refuse BEFORE UPDATE ON workflow_run WHEN new.result = 'not json'"
                " BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        await worker.settler.flush()
        assert [await status(work, run.id) for run in made] == [
            "succeeded",
            "leased",
            "succeeded",
            "succeeded",
        ]
        assert worker.settler.waiting == 1


# -- housekeeping


@pytest.mark.unpartitioned(reason="ids are made now, and the clock goes on for weeks: no partition is old")
async def test_finished_runs_are_pruned_after_their_time_with_all_that_is_theirs(
    server: Server, clock: FakeClock
) -> None:
    clock.move_to(datetime.now(UTC))  # ids tell the time of the machine

    @server.work.handler("default.steps")
    async def steps(run: Run) -> None:
        await run.step("one", lambda: 1)

    @server.work.handler("default.bad", max_attempts=1)
    async def bad(run: Run) -> None:
        raise ValueError

    async with working(server) as work:
        old = [await work.submit("default.steps"), await work.submit("default.bad")]
        await work.signal(old[0].id, "unheard")
        cancelled = await work.submit("default.steps", delay=minutes(1))
        await work.cancel(cancelled.id)
        deleted = await work.submit("default.steps", delay=minutes(1))
        await work.delete(deleted.id)
        await work.worker().drain()
        later = await work.submit("default.steps", delay=timedelta(days=90))
        pruner = Pruner(work.engine)

        clock.advance(timedelta(days=29))
        assert await pruner.tick() is False
        assert len(await server.raw_query("SELECT id FROM workflow_run")) == 5
        clock.advance(timedelta(days=2))
        await pruner.tick()
        assert [row["id"] for row in await server.raw_query("SELECT id FROM workflow_run")] == [later.id]
        for table in ("workflow_step", "workflow_signal"):
            assert await server.raw_query(f"SELECT id FROM {table}") == []
        assert await kinds(work, old[0].id) == []
        assert await kinds(work, later.id) == ["created"]
        assert work.environment.metrics.value("runs_pruned_total") == 4


async def test_old_runs_that_still_wait_are_not_gone_through_again_and_again(
    server: Server, clock: FakeClock
) -> None:
    clock.move_to(datetime.now(UTC))  # ids tell the time of the machine
    succeeding(server)
    async with working(server) as work:
        waiting = await work.submit_many("default.ok", range(7), delay=timedelta(days=90))
        done = await work.submit_many("default.ok", range(3))
        await work.worker().drain()
        clock.advance(timedelta(days=31))

        places, removed, after = [], 0, ""
        for _ in range(3):
            some, after = await work.engine.store.prune(
                clock.now() - timedelta(days=30), 2, after=after, look=4
            )
            places.append(after)
            removed += some
        assert places == [waiting[3].id, done[0].id, ""]
        assert removed == 3
        assert len(await work.list()) == 7


async def test_a_retention_of_zero_keeps_everything(database_url: str, clock: FakeClock) -> None:
    server = Server(database_url, clock=clock, work_retention=timedelta(0))
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        await work.worker().drain()
        clock.advance(timedelta(days=40_000))
        await Pruner(work.engine).tick()
        assert await status(work, made.id) == "succeeded"


async def test_numbers_are_kept(server: Server, clock: FakeClock) -> None:
    succeeding(server)

    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        raise ValueError

    async with working(server) as work:
        metrics = work.environment.metrics
        await work.submit_many("default.ok", range(3))
        await work.submit("default.bad")
        clock.advance(seconds(90))
        waiting = {(s.name, s.labels): s.value for s in await metrics.gauges()}
        assert waiting[("runs_due", (("type", "default.ok"),))] == 3
        assert waiting[("runs_oldest_due_seconds", ())] == 90
        await work.worker().drain()
        await work.submit("default.ok")
        await work.worker().claim(1)
        clock.advance(minutes(1))
        await work.worker().drain()
        names = ("claimed", "succeeded", "failed", "retried", "reclaimed")
        counted = {name: metrics.value(f"runs_{name}_total") for name in names}
        empty = {s.name: s.value for s in await metrics.gauges()}
    assert counted == {"claimed": 7, "succeeded": 4, "failed": 1, "retried": 1, "reclaimed": 1}
    assert empty.get("runs_oldest_due_seconds") == 0


async def test_what_is_due_is_counted_whatever_its_group_and_priority(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    succeeding(server, "other.kind")
    async with working(server) as work:
        for group in (None, "g", "h"):
            for priority in (-1, 0, 5):
                await work.submit("default.ok", group_key=group, priority=priority)
        clock.advance(seconds(30))
        await work.submit("other.kind", group_key="g")
        await work.submit("other.kind", delay=minutes(1))
        found = {(s.name, s.labels): s.value for s in await work.environment.metrics.gauges()}
    assert found["runs_due", (("type", "default.ok"),)] == 9
    assert found["runs_due", (("type", "other.kind"),)] == 1
    assert found["runs_oldest_due_seconds", ()] == 30


async def test_listing_filters_and_pages(server: Server) -> None:
    for type in ("a.one", "a.two", "b.one"):
        succeeding(server, type)
    async with working(server) as work:
        for type in ("a.one", "a.two", "b.one"):
            await work.submit_many(type, range(3), actor_id=type[0], tenant_id="t")
        await work.worker(["b."]).drain()

        assert len(await work.list()) == 9
        assert {run.type for run in await work.list(prefix="a.")} == {"a.one", "a.two"}
        assert {run.type for run in await work.list(status="succeeded")} == {"b.one"}
        assert len(await work.list(type="a.one", actor_id="a", tenant_id="t")) == 3
        assert await work.list(actor_id="nobody") == []
        first, second = await work.list(limit=5), await work.list(limit=5, page=2)
        ids = [run.id for run in first + second]
        assert ids == sorted(ids, reverse=True)
        assert len(set(ids)) == 9
        with pytest.raises(Exception, match="limit"):
            await work.list(limit=0)
