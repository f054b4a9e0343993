"""Runs that pause: durable sleep, signals, sub-runs, and callers that wait for a run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.errors import Conflict, RunFailed
from maniflex.sql.statement import Dialect
from maniflex.testing.clock import FakeClock
from tests.kit.runs import is_free, kinds, minutes, no_pause, seconds, status, succeeding, working
from tests.kit.waiting import PATIENCE, eventually


async def test_a_sleeping_run_leaves_the_worker_and_goes_on_with_another(
    server: Server, clock: FakeClock
) -> None:
    passed: list[str] = []

    @server.work.handler("default.nap", max_attempts=1)
    async def nap(run: Run) -> int:
        await run.step("before", lambda: passed.append("before"))
        await run.sleep(minutes(10))
        await run.sleep(minutes(10))
        passed.append("after")
        return run.attempt

    async with working(server) as work:
        made = await work.submit("default.nap")
        await work.worker().drain()
        asleep = await work.get(made.id)
        assert (asleep.status, asleep.attempt, asleep.run_at) == ("pending", 0, clock.now() + minutes(10))
        assert is_free(asleep)

        clock.advance(minutes(9))
        assert await work.worker().drain() == 0
        clock.advance(minutes(1))
        assert await work.worker().drain() == 1
        clock.advance(minutes(10))
        await work.worker().drain()

        done = await work.get(made.id)
        assert (done.status, done.result, passed) == ("succeeded", 1, ["before", "after"])
        suspended = ["leased", "suspended"]
        assert await kinds(work, made.id) == ["created", *suspended, *suspended, "leased", "succeeded"]


async def test_a_crash_after_a_sleep_does_not_sleep_again(server: Server, clock: FakeClock) -> None:
    @server.work.handler("default.nap", backoff=no_pause)
    async def nap(run: Run) -> None:
        await run.sleep(minutes(10))
        if run.attempt == 1:
            raise ValueError

    async with working(server) as work:
        made = await work.submit("default.nap")
        await work.worker().drain()
        clock.advance(minutes(10))
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"


async def test_a_cancelled_sleeper_does_not_wake(server: Server, clock: FakeClock) -> None:
    @server.work.handler("default.nap")
    async def nap(run: Run) -> None:
        await run.sleep(minutes(10))

    async with working(server) as work:
        made = await work.submit("default.nap")
        await work.worker().drain()
        await work.cancel(made.id)
        clock.advance(minutes(20))
        assert await work.worker().drain() == 0
        assert await status(work, made.id) == "cancelled"


# -- signals


def waiting(server: Server, timeout: Any = None) -> list[Any]:
    got: list[Any] = []

    @server.work.handler("default.wait")
    async def wait(run: Run) -> Any:
        try:
            got.append(await run.wait_for("approved", timeout))
        except TimeoutError:
            got.append("timed out")
        return got[-1]

    return got


async def test_a_signal_wakes_the_run_that_waits_for_it(server: Server, clock: FakeClock) -> None:
    got = waiting(server)
    async with working(server) as work:
        made = await work.submit("default.wait")
        worker = work.worker()
        await worker.drain()
        assert (await work.get(made.id)).waiting_for == "approved"
        clock.advance(minutes(100_000))
        assert await worker.drain() == 0

        await work.signal(made.id, "something else", 1)
        assert await worker.drain() == 0
        await work.signal(made.id, "approved", {"by": "ann"})
        assert await worker.drain() == 1
        assert (got, await status(work, made.id)) == ([{"by": "ann"}], "succeeded")
        assert (await work.get(made.id)).attempt == 1


async def test_a_signal_sent_before_the_run_waits_is_kept(server: Server) -> None:
    got = waiting(server)
    async with working(server) as work:
        made = await work.submit("default.wait")
        await work.signal(made.id, "approved")
        await work.worker().drain()
        assert (got, await status(work, made.id)) == ([None], "succeeded")


async def test_a_signal_sent_while_the_run_is_about_to_wait_is_not_missed(server: Server) -> None:
    @server.work.handler("default.wait")
    async def wait(run: Run) -> Any:
        try:
            return await run.wait_for("approved")
        except BaseException:
            if not signalled:
                signalled.append(run.id)
                await server.work.signal(run.id, "approved", "just now")
            raise

    signalled: list[str] = []
    async with working(server) as work:
        made = await work.submit("default.wait")
        await work.worker().drain()
        assert (await work.get(made.id)).result == "just now"


async def test_waiting_ends_at_its_time_once_and_for_all(server: Server, clock: FakeClock) -> None:
    got = waiting(server, minutes(5))
    async with working(server) as work:
        made = await work.submit("default.wait")
        worker = work.worker()
        await worker.drain()
        clock.advance(minutes(4))
        await work.signal(made.id, "no")
        assert await worker.drain() == 0
        clock.advance(minutes(1))
        await worker.drain()
        assert (got, await status(work, made.id)) == (["timed out"], "succeeded")


async def test_signals_of_one_name_are_taken_in_order_each_once(server: Server) -> None:
    @server.work.handler("default.many", backoff=no_pause)
    async def many(run: Run) -> list[Any]:
        got = [await run.wait_for("n") for _ in range(3)]
        if run.attempt == 1:
            raise ValueError("again: what was taken stays taken")
        return got

    async with working(server) as work:
        made = await work.submit("default.many")
        for n in range(3):
            await work.signal(made.id, "n", n)
            await work.worker().drain()
        assert (await work.get(made.id)).result == [0, 1, 2]


async def test_a_run_tells_another_once_however_often_it_is_tried(server: Server) -> None:
    @server.work.handler("default.listener")
    async def listener(run: Run) -> Any:
        return [await run.wait_for("page"), await run.wait_for("page")]

    @server.work.handler("default.teller", backoff=no_pause)
    async def teller(run: Run) -> None:
        await run.signal(run.payload, "page", 1)
        if run.attempt < 3:
            raise OSError("again")
        await run.signal(run.payload, "page", 2)

    async with working(server) as work:
        listening = await work.submit("default.listener")
        await drained(work)
        await work.submit("default.teller", listening.id)
        await drained(work)

        assert (await work.get(listening.id)).result == [1, 2]


async def test_a_finished_run_takes_no_signals_and_a_rollback_sends_none(server: Server) -> None:
    got = waiting(server)
    async with working(server) as work:
        made = await work.submit("default.wait")
        await work.worker().drain()
        with suppress(RuntimeError):
            async with server.transaction():
                await work.signal(made.id, "approved")
                raise RuntimeError
        assert await work.worker().drain() == 0
        await work.signal(made.id, "approved")
        await work.worker().drain()
        assert got == [None]
        with pytest.raises(Conflict, match="succeeded"):
            await work.signal(made.id, "approved")


# -- sub-runs


def family(server: Server, **options: Any) -> None:
    @server.work.handler("default.parent", backoff=no_pause)
    async def parent(run: Run) -> Any:
        return await run.call("default.child", {"n": run.payload["n"]})

    @server.work.handler("default.child", **options)
    async def child(run: Run) -> int:
        if run.payload["n"] < 0:
            raise ValueError("negative")
        return int(run.payload["n"]) * 2


async def drained(work: Any) -> None:
    """Work, and let the hints to parents arrive."""
    worker = work.worker()
    for _ in range(10):
        await worker.drain()
        for task in list(work.engine._tasks):
            await task


async def test_a_parent_waits_for_its_child_without_a_worker(server: Server) -> None:
    family(server)
    async with working(server) as work:
        made = await work.submit("default.parent", {"n": 21}, actor_id="ann", tenant_id="t", trace_id="x")
        await drained(work)
        done = await work.get(made.id)
        assert (done.status, done.result, done.attempt) == ("succeeded", 42, 1)
        [child] = await work.list(type="default.child")
        assert (child.parent_id, child.actor_id, child.tenant_id, child.trace_id) == (
            made.id,
            "ann",
            "t",
            "x",
        )


async def test_a_failed_child_fails_its_parent_which_may_know_better(server: Server) -> None:
    family(server, max_attempts=1)
    caught: list[RunFailed] = []

    @server.work.handler("default.careful")
    async def careful(run: Run) -> str:
        try:
            await run.call("default.child", {"n": -1})
        except RunFailed as error:
            caught.append(error)
            return "did without"
        return "?"

    async with working(server) as work:
        careless = await work.submit("default.parent", {"n": -1}, max_attempts=1)
        made = await work.submit("default.careful")
        await drained(work)
        assert await status(work, careless.id) == "failed"
        assert (await work.get(made.id)).result == "did without"
        assert len(caught) == 1


async def test_a_missed_hint_only_delays_the_parent(server: Server, clock: FakeClock) -> None:
    family(server)
    async with working(server) as work:
        made = await work.submit("default.parent", {"n": 1})
        worker = work.worker()
        await worker.run_once()
        [child] = await work.list(type="default.child")
        # Whoever did this died before it told the parent.
        await server.raw_exec("UPDATE workflow_run SET status = 'cancelled' WHERE type = 'default.child'")
        assert await worker.run_once() == 0
        clock.advance(seconds(31))
        await worker.run_once()
        assert f"{child.id} cancelled" in ((await work.get(made.id)).last_error or "")


@pytest.mark.parametrize("how", ["cancel", "delete", "cancel in a transaction", "its worker died"])
async def test_a_parent_is_told_however_its_child_ended(server: Server, clock: FakeClock, how: str) -> None:
    family(server, max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.parent", {"n": 1}, max_attempts=1)
        await work.worker().run_once()
        [child] = await work.list(type="default.child")
        if how == "cancel":
            await work.cancel(child.id)
        elif how == "delete":
            await work.delete(child.id)
        elif how == "its worker died":
            clock.advance(seconds(1))
            await work.worker().claim(1)
            clock.advance(seconds(28))
            await server.raw_exec("UPDATE workflow_run SET lease_until = created_at WHERE lease IS NOT NULL")
        else:
            async with server.transaction():
                await work.cancel(child.id)
        await drained(work)
        parent = await work.get(made.id)
        assert parent.status == "failed"
        assert child.id in (parent.last_error or "")


async def test_a_child_that_ends_while_its_parent_is_about_to_wait_is_not_missed(server: Server) -> None:
    family(server)
    async with working(server) as work:
        made = await work.submit("default.parent", {"n": 4})
        real = work.engine.store.settle

        async def late(*args: Any, **options: Any) -> Any:
            """The child ends after its parent has asked and before it waits."""
            work.engine.store.settle = real  # type: ignore[method-assign]
            kept = await real(*args, **options)
            if work.engine.store.adapter.dialect is Dialect.POSTGRES:  # SQLite has one writer
                other = work.worker()
                [child] = await other.claim(1)
                await other.begin([child])[0].task
                await other.settler.flush()
            return kept

        work.engine.store.settle = late  # type: ignore[method-assign]
        await drained(work)
        done = await work.get(made.id)
        assert (done.status, done.result) == ("succeeded", 8)


async def test_a_parent_looks_after_its_child_more_and_more_rarely(server: Server, clock: FakeClock) -> None:
    @server.work.handler("default.child")
    async def child(run: Run) -> None:
        await run.sleep(minutes(60 * 24 * 30))

    @server.work.handler("default.parent")
    async def parent(run: Run) -> None:
        await run.call("default.child")

    async with working(server) as work:
        made = await work.submit("default.parent")
        await drained(work)
        looks: list[float] = []
        while sum(looks) < 6 * 3600:
            due = (await work.get(made.id)).run_at
            looks.append((due - clock.now()).total_seconds())
            clock.move_to(due)
            assert await work.worker().drain() == 1
        assert looks == [30, 30, 60, 120, 240, 480, 960, 1920, *[3600] * 5]


async def test_children_are_submitted_once_however_often_the_parent_is_tried(server: Server) -> None:
    @server.work.handler("default.fan", backoff=no_pause)
    async def fan(run: Run) -> int:
        ids = [await run.submit("default.ok", n) for n in range(3)]
        if run.attempt < 3:
            raise ValueError
        return len(set(ids))

    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.fan")
        await work.worker().drain()
        assert (await work.get(made.id)).result == 3
        assert len(await work.list(type="default.ok")) == 3


async def test_a_child_that_is_long_gone_is_not_started_again(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)

    @server.work.handler("default.parent")
    async def parent(run: Run) -> str:
        child = await run.submit("default.ok", name="once")
        await run.sleep(minutes(60))
        return child

    async with working(server) as work:
        made = await work.submit("default.parent")
        await work.worker().drain()
        await server.raw_exec("DELETE FROM workflow_run WHERE type = 'default.ok'")
        clock.advance(minutes(60))
        await work.worker().drain()
        done = await work.get(made.id)
        assert (done.status, done.result) == ("succeeded", seen[0].id)
        assert len(seen) == 1


async def test_a_child_that_was_deleted_is_not_started_again(server: Server, clock: FakeClock) -> None:
    family(server)
    async with working(server) as work:
        made = await work.submit("default.parent", {"n": 1})
        await work.worker().run_once()
        [child] = await work.list(type="default.child")
        await work.delete(child.id, "not wanted")
        clock.advance(minutes(5))
        await drained(work)
        done = await work.get(made.id)
        assert (done.status, f"{child.id} deleted" in (done.last_error or "")) == ("failed", True)
        assert len(await server.raw_query("SELECT id FROM workflow_run WHERE parent_id IS NOT NULL")) == 1


async def test_a_worker_that_was_given_up_starts_no_children(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)

    @server.work.handler("default.parent")
    async def parent(run: Run) -> None:
        if run.attempt == 1:
            clock.advance(minutes(1))
            await server.work.worker().run_once()
        await run.submit("default.ok")

    async with working(server) as work:
        await work.submit("default.parent")
        await work.worker().run_once()
        await drained(work)
        assert len(await work.list(type="default.ok")) == len(seen) == 1


async def test_children_of_a_rolled_back_transaction_are_submitted_by_the_next_attempt(
    server: Server,
) -> None:
    succeeding(server)

    @server.work.handler("default.parent", backoff=no_pause)
    async def parent(run: Run) -> None:
        async with server.transaction():
            await run.submit("default.ok")
            if run.attempt == 1:
                raise OSError

    async with working(server) as work:
        made = await work.submit("default.parent")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
        assert len(await work.list(type="default.ok")) == 1


# -- waiting for a run


async def test_wait_returns_the_finished_run(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", 1)
        waiter = asyncio.create_task(work.wait(made.id))
        await asyncio.sleep(0)
        await work.worker().drain()
        assert (await asyncio.wait_for(waiter, PATIENCE)).result == {"payload": 1}
        assert (await work.wait(made.id)).status == "succeeded"


async def test_wait_gives_up_at_its_time(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", delay=minutes(5))
        waiter = asyncio.create_task(work.wait(made.id, minutes(1)))
        while not waiter.done():
            await eventually(lambda: clock.sleepers or waiter.done(), "a waiter that rests")
            clock.advance(seconds(10))
        with pytest.raises(TimeoutError, match="still pending"):
            await waiter


async def test_wait_rests_between_looks_when_an_attempt_ended_but_not_the_run(
    server: Server, clock: FakeClock
) -> None:
    @server.work.handler("default.bad")
    async def bad(run: Run) -> None:
        raise ValueError

    async with working(server) as work:
        made = await work.submit("default.bad")
        looks = 0
        real = work.get

        async def counted(id: str, **options: Any) -> Any:
            nonlocal looks
            looks += 1
            return await real(id, **options)

        work.get = counted  # type: ignore[method-assign]  # only to count
        waiter = asyncio.create_task(work.wait(made.id))
        await eventually(lambda: clock.sleepers, "a waiter that rests")
        before = looks
        await work.worker().run_once()
        await eventually(lambda: looks > before and clock.sleepers, "a waiter that rests again")
        assert looks <= 4
        waiter.cancel()
