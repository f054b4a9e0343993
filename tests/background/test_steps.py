"""Steps: remembered once finished, repeated until then, exactly once inside a transaction."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Model, Run, Server
from maniflex.errors import DeclarationError
from maniflex.testing.clock import FakeClock
from tests.kit.runs import minutes, no_pause, status, working
from tests.kit.waiting import PATIENCE, eventually


class Charge(Model):
    order: int


async def test_a_retry_does_not_repeat_finished_steps_and_is_given_what_they_gave(server: Server) -> None:
    calls: list[str] = []

    def plain(n: int, *, times: int) -> dict[str, int]:
        calls.append("plain")
        return {"n": n * times}

    async def later(n: int) -> list[int]:
        calls.append("later")
        return [n]

    @server.work.handler("default.steps", backoff=no_pause)
    async def steps(run: Run) -> Any:
        first = await run.step("first", plain, 2, times=3)
        second = await run.step("second", later, first["n"])
        nothing: Any = await run.step("nothing", bool)
        if run.attempt < 3:
            raise OSError(run.attempt)
        return [first, second, nothing]

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        assert (await work.get(made.id)).result == [{"n": 6}, [6], False]
    assert calls == ["plain", "later"]


async def test_what_a_step_returns_is_the_same_the_first_time_and_on_replay(server: Server) -> None:
    """A tuple becomes a list and a key a text at once, not only after a crash."""
    seen: list[Any] = []

    @server.work.handler("default.steps", backoff=no_pause)
    async def steps(run: Run) -> None:
        seen.append(await run.step("odd", lambda: {1: (2, 3)}))
        if run.attempt == 1:
            raise OSError

    async with working(server) as work:
        await work.submit("default.steps")
        await work.worker().drain()
    assert seen == [{"1": [2, 3]}] * 2


async def test_a_step_that_fails_is_tried_again(server: Server) -> None:
    calls: list[int] = []

    @server.work.handler("default.steps", backoff=no_pause)
    async def steps(run: Run) -> None:
        def fails() -> None:
            calls.append(run.attempt)
            if run.attempt == 1:
                raise ValueError

        await run.step("one", fails)

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
    assert calls == [1, 2]


async def test_a_step_whose_result_cannot_be_kept_fails_the_run_at_once(server: Server) -> None:
    @server.work.handler("default.steps", backoff=no_pause)
    async def steps(run: Run) -> None:
        await run.step("odd", object)

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.attempt) == ("failed", 1)
    assert "result of step 'odd'" in (done.last_error or "")


async def test_steps_of_a_dead_worker_are_known_to_its_successor(server: Server, clock: FakeClock) -> None:
    calls: list[int] = []

    @server.work.handler("default.steps")
    async def steps(run: Run) -> None:
        await run.step("one", calls.append, run.attempt)
        if run.attempt == 1:
            await asyncio.Event().wait()

    async with working(server) as work:
        made = await work.submit("default.steps")
        dead = work.worker()
        [claimed] = await dead.claim(1)
        [begun] = dead.begin([claimed])
        await eventually(lambda: server.raw_query("SELECT name FROM workflow_step"), "the step")
        clock.advance(minutes(1))
        await work.worker().drain()
        assert (await status(work, made.id), calls) == ("succeeded", [1])
        begun.task.cancel()
        await begun.task


async def test_a_step_needs_a_name(server: Server) -> None:
    @server.work.handler("default.steps", max_attempts=1)
    async def steps(run: Run) -> None:
        await run.step("", lambda: 1)

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        assert await status(work, made.id) == "failed"


async def test_steps_begin_no_more_once_the_run_is_cancelled(server: Server) -> None:
    calls: list[str] = []

    @server.work.handler("default.steps")
    async def steps(run: Run) -> None:
        await run.step("one", calls.append, "one")
        await server.work.cancel(run.id)
        await run.step("two", calls.append, "two")
        await run.step("three", calls.append, "three")

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        assert await status(work, made.id) == "cancelled"
    assert "three" not in calls


async def test_a_plain_step_may_come_to_the_end_of_an_iterator(server: Server) -> None:
    @server.work.handler("default.steps", max_attempts=1)
    async def steps(run: Run) -> None:
        await run.step("next", lambda: next(iter(())))

    async with working(server) as work:
        made = await work.submit("default.steps")
        await asyncio.wait_for(work.worker().drain(), 20)
        done = await work.get(made.id)
    assert (done.status, done.last_error) == ("failed", "RuntimeError: StopIteration was raised")


async def test_two_steps_of_one_name_at_once_are_told_apart_from_a_lost_lease(server: Server) -> None:
    calls: list[int] = []

    @server.work.handler("default.steps", max_attempts=1)
    async def steps(run: Run) -> None:
        await asyncio.gather(run.step("same", calls.append, 1), run.step("same", calls.append, 2))

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        done = await work.get(made.id)
    assert done.status == "failed"
    assert "step 'same' is under way already" in (done.last_error or "")
    assert 2 not in calls


async def test_steps_side_by_side_with_names_of_their_own(server: Server) -> None:
    @server.work.handler("default.steps")
    async def steps(run: Run) -> list[int]:
        return list(await asyncio.gather(*(run.step(f"n{n}", lambda n=n: n) for n in range(5))))

    async with working(server) as work:
        made = await work.submit("default.steps")
        await work.worker().drain()
        assert (await work.get(made.id)).result == [0, 1, 2, 3, 4]


# -- transactional steps


@pytest.mark.parametrize("crash", ["inside", "after", "never"])
async def test_what_a_transactional_step_writes_happens_exactly_once(server: Server, crash: str) -> None:
    server.register(Charge)

    @server.work.handler("default.charge", backoff=no_pause)
    async def charge(run: Run) -> None:
        async def pay() -> str:
            made = await server.db(Charge).create(order=7)
            if crash == "inside" and run.attempt == 1:
                raise OSError
            return made.id

        await run.step("pay", pay, transactional=True)
        if crash == "after" and run.attempt == 1:
            raise OSError

    async with working(server) as work:
        made = await work.submit("default.charge")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
        assert await server.db(Charge).count() == 1


async def test_a_transactional_step_of_a_given_up_worker_writes_nothing(
    server: Server, clock: FakeClock
) -> None:
    server.register(Charge)

    @server.work.handler("default.charge")
    async def charge(run: Run) -> int:
        if run.attempt == 1:
            clock.advance(minutes(1))
            await server.work.worker().run_once()
        await run.step("pay", lambda: server.db(Charge).create(order=7), transactional=True)
        return run.attempt

    async with working(server) as work:
        made = await work.submit("default.charge")
        await work.worker().run_once()
        done = await work.get(made.id)
        assert (done.status, done.result, await server.db(Charge).count()) == ("succeeded", 2, 1)


async def test_a_step_inside_a_transaction_that_rolled_back_did_not_happen(server: Server) -> None:
    server.register(Charge)
    calls: list[int] = []

    @server.work.handler("default.charge")
    async def charge(run: Run) -> None:
        async def pay() -> None:
            calls.append(1)
            await server.db(Charge).create(order=7)

        await run.step("before", lambda: None)
        try:
            async with server.transaction():
                await run.step("pay", pay)
                raise KeyError
        except KeyError:
            await run.step("pay", pay)  # in the same attempt: it must not be taken for done

    async with working(server) as work:
        made = await work.submit("default.charge")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
        assert (len(calls), await server.db(Charge).count()) == (2, 1)


async def test_a_run_cannot_pause_inside_a_transaction(server: Server) -> None:
    """What it remembered of the pause would be rolled back, and it would pause for ever."""
    refused: list[str] = []

    @server.work.handler("default.pause")
    async def pause(run: Run) -> None:
        for name, call in (
            ("sleep", lambda: run.sleep(60)),
            ("wait_for", lambda: run.wait_for("x")),
            ("call", lambda: run.call("default.pause")),
        ):
            async with server.transaction():
                with pytest.raises(DeclarationError, match="cannot pause inside a transaction"):
                    await call()
            refused.append(name)

    async with working(server) as work:
        made = await work.submit("default.pause")
        await work.worker().drain()
        assert (await status(work, made.id), refused) == ("succeeded", ["sleep", "wait_for", "call"])


async def test_a_heartbeat_inside_a_transaction_does_not_wait_for_it(
    database_url: str, clock: FakeClock
) -> None:
    server = Server(database_url, clock=clock, pool_size=4, lock_timeout=timedelta(seconds=2 * PATIENCE))

    @server.work.handler("default.beat", max_attempts=1)
    async def beat(run: Run) -> None:
        async with server.transaction():
            await run.step("one", lambda: 1)
            await asyncio.wait_for(run.heartbeat(), PATIENCE)

    async with working(server) as work:
        made = await work.submit("default.beat")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
