"""Sagas: a run that fails for good takes its finished steps back, the last one first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex import Run, Server
from maniflex._ids import new_id
from maniflex.background.runs.step_memory import DoneStep, StepMemory
from maniflex.errors import Fatal, Unavailable
from maniflex.testing.clock import FakeClock
from tests.kit.runs import is_free, minutes, no_pause, status, working


class Trip:
    """Books three things, then fails as told; every effect is written down."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.log: list[str] = []
        self.fails = True
        self.error: Exception = Fatal("no hotel")
        self.undo_fails: dict[str, int] = {}
        self.ends_between = False
        server.work.handler("default.trip", backoff=no_pause, **options)(self.run)

    async def run(self, run: Run) -> str:
        for name in ("car", "flight", "hotel"):
            await run.step(name, self.book, name, compensate=self.cancel)
        if self.fails:
            if self.ends_between:
                self.fails = False
            raise self.error
        return "booked"

    def book(self, name: str) -> str:
        self.log.append(f"+{name}")
        return name

    async def cancel(self, name: str) -> None:
        if self.undo_fails.get(name):
            self.undo_fails[name] -= 1
            self.log.append(f"?{name}")
            raise OSError(f"{name} does not answer")
        self.log.append(f"-{name}")


BOOKED = ["+car", "+flight", "+hotel"]
UNDONE = ["-hotel", "-flight", "-car"]


async def test_nothing_is_taken_back_when_all_goes_well(server: Server) -> None:
    trip = Trip(server)
    trip.fails = False
    async with working(server) as work:
        made = await work.submit("default.trip")
        await work.worker().drain()
        assert (await status(work, made.id), trip.log) == ("succeeded", BOOKED)


async def test_a_fatal_failure_takes_the_steps_back_in_reverse(server: Server) -> None:
    trip = Trip(server)
    async with working(server) as work:
        made = await work.submit("default.trip")
        await work.worker().drain()
        done = await work.get(made.id)
        last = (await work.events(made.id))[-1]
    assert (last.event_type, (last.data or {})["taken_back"]) == ("failed", ["hotel", "flight", "car"])
    assert (done.status, trip.log) == ("failed", BOOKED + UNDONE)
    assert "no hotel" in (done.last_error or "")
    assert is_free(done)


async def test_attempts_are_used_up_first_and_finished_steps_are_not_repeated(server: Server) -> None:
    trip = Trip(server, max_attempts=3)
    trip.error = OSError("full")
    async with working(server) as work:
        made = await work.submit("default.trip")
        worker = work.worker()
        await worker.run_once()
        await worker.run_once()
        assert (await status(work, made.id), trip.log) == ("pending", BOOKED)
        await worker.run_once()
        assert (await status(work, made.id), trip.log) == ("failed", BOOKED + UNDONE)


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_compensation_that_fails_is_tried_again_until_it_works(
    server: Server, max_attempts: int
) -> None:
    trip = Trip(server, max_attempts=max_attempts)
    trip.undo_fails = {"flight": 3}
    async with working(server) as work:
        made = await work.submit("default.trip")
        await work.worker().drain()
        done = await work.get(made.id)
    assert done.status == "failed"
    assert trip.log == [*BOOKED, "-hotel", *["?flight"] * 3, "-flight", "-car"]


async def test_a_compensation_that_never_works_ends_and_may_be_retried_by_hand(server: Server) -> None:
    trip = Trip(server)
    trip.undo_fails = {"flight": 12}
    async with working(server) as work:
        made = await work.submit("default.trip")
        await work.worker().drain()
        stuck = await work.get(made.id)
        assert stuck.status == "failed"
        assert stuck.error is not None
        assert stuck.error["code"] == "compensation_failed"
        assert "flight does not answer" in (stuck.last_error or "")
        assert trip.undo_fails == {"flight": 1}

        await work.retry(made.id)
        await work.worker().drain()
        assert await status(work, made.id) == "failed"
        assert trip.log[-2:] == ["-flight", "-car"]
        assert trip.log.count("+flight") == trip.log.count("-hotel") == 1


async def test_a_crash_in_the_middle_of_compensation_goes_on_going_back(
    server: Server, clock: FakeClock
) -> None:
    trip = Trip(server, max_attempts=1)
    crashing = trip.cancel

    async def crash(name: str) -> None:
        await crashing(name)
        if name == "flight" and trip.log.count("-flight") == 1:
            raise SystemExit  # no later statement of ours is written, as if we had been killed

    trip.cancel = crash  # type: ignore[method-assign]
    trip.ends_between = True  # and what went wrong the first time would go right now
    async with working(server) as work:
        made = await work.submit("default.trip")
        dead = work.worker()
        [claimed] = await dead.claim(1)
        await dead.begin([claimed])[0].task
        dead.settler._changes.clear()  # the process is gone, and its outcome with it
        clock.advance(minutes(1))
        await work.worker().drain()
        done = await work.get(made.id)
    # The effect that was not yet written down is the one that may happen twice.
    assert trip.log == [*BOOKED, "-hotel", "-flight", "-flight", "-car"]
    assert done.status == "failed"


async def test_a_saga_that_went_back_starts_anew_when_it_is_retried(server: Server) -> None:
    trip = Trip(server)
    async with working(server) as work:
        made = await work.submit("default.trip")
        await work.worker().drain()
        trip.fails = False
        await work.retry(made.id)
        await work.worker().drain()
        assert (await work.get(made.id)).result == "booked"
    assert trip.log == [*BOOKED, *UNDONE, *BOOKED]


async def test_a_failed_step_is_not_compensated_and_steps_without_compensation_are_left(
    server: Server,
) -> None:
    log: list[str] = []

    @server.work.handler("default.saga")
    async def saga(run: Run) -> None:
        def refuse() -> None:
            raise Fatal("no")

        await run.step("a", log.append, "a", compensate=lambda _: log.append("-a"))
        await run.step("b", log.append, "b")
        await run.step("c", refuse, compensate=lambda _: log.append("-c"))

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        assert (await status(work, made.id), log) == ("failed", ["a", "b", "-a"])


async def test_a_cancelled_saga_is_left_as_it_is(server: Server) -> None:
    """Cancelling is the canceller's decision; the worker only stops."""
    trip = Trip(server)

    async with working(server) as work:
        original = trip.book

        def book(name: str) -> str:
            return original(name)

        trip.book = book  # type: ignore[method-assign]
        made = await work.submit("default.trip")
        await work.cancel(made.id)
        await work.worker().drain()
        assert (await status(work, made.id), trip.log) == ("cancelled", [])


async def test_a_worker_that_dies_in_the_last_attempt_leaves_nothing_half_done(
    server: Server, clock: FakeClock
) -> None:
    trip = Trip(server, max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.trip")
        dying = work.worker()
        [claimed] = await dying.claim(1)
        memory = StepMemory(work.engine.store, work.clock)
        await memory.keep(claimed.held, DoneStep(new_id(), "car", "car", print), "car")
        clock.advance(minutes(1))  # nobody renews: it is gone, and so is its only attempt

        await work.worker().drain()

        done = await work.get(made.id)
        assert (done.status, trip.log) == ("failed", ["-car"])
        assert "lease_expired" in str(done.last_error)
        assert is_free(done)


async def test_a_worker_that_dies_in_the_last_attempt_before_any_step_just_fails(
    server: Server, clock: FakeClock
) -> None:
    trip = Trip(server, max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.trip")
        await work.worker().claim(1)
        clock.advance(minutes(1))

        assert await work.worker().drain() == 0
        assert (await status(work, made.id), trip.log) == ("failed", [])


# -- an attempt that does not come to its steps


async def test_a_last_attempt_that_ends_before_the_steps_still_takes_them_back(server: Server) -> None:
    log: list[str] = []

    @server.work.handler("default.saga", max_attempts=2, backoff=no_pause)
    async def saga(run: Run) -> None:
        if run.attempt == 2:
            raise ConnectionError("the settings are away")
        for name in ("a", "b"):
            await run.step(name, log.append, name, compensate=lambda _, name=name: log.append(f"-{name}"))
        raise ValueError("boom")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, log) == ("failed", ["a", "b", "-b", "-a"])
    assert is_free(done)


async def test_steps_are_taken_back_in_reverse_also_when_the_last_attempt_came_to_some(
    server: Server,
) -> None:
    log: list[str] = []

    @server.work.handler("default.saga", max_attempts=2, backoff=no_pause)
    async def saga(run: Run) -> None:
        for name in ("a", "b"):
            await run.step(name, log.append, name, compensate=lambda _, name=name: log.append(f"-{name}"))
            if run.attempt == 2:
                raise Fatal("away")
        raise ValueError("boom")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        assert (await status(work, made.id), log) == ("failed", ["a", "b", "-b", "-a"])


async def test_steps_that_are_never_come_to_again_are_reported(server: Server) -> None:
    log: list[str] = []
    away = False

    @server.work.handler("default.saga", max_attempts=2, backoff=no_pause)
    async def saga(run: Run) -> None:
        if away:
            raise ConnectionError("the settings are away")
        await run.step("a", log.append, "a", compensate=lambda _: log.append("-a"))
        raise ValueError("boom")

    async with working(server) as work:
        made = await work.submit("default.saga")
        worker = work.worker()
        await worker.run_once()
        away = True
        await worker.drain()
        stuck = await work.get(made.id)
        assert (stuck.status, log) == ("failed", ["a"])
        assert stuck.error is not None
        assert stuck.error["code"] == "compensation_failed"

        away = False
        await work.retry(made.id)
        await worker.drain()
        assert (await status(work, made.id), log) == ("failed", ["a", "-a"])


async def test_a_handler_that_returns_early_on_the_way_back_has_not_succeeded(server: Server) -> None:
    log: list[str] = []

    @server.work.handler("default.saga", max_attempts=1, backoff=no_pause)
    async def saga(run: Run) -> None:
        if run.attempt == 2:
            return
        await run.step("a", log.append, "a", compensate=undo)
        raise ValueError("boom")

    def undo(_: Any) -> None:
        log.append("-a" if "?a" in log else "?a")
        if log[-1] == "?a":
            raise OSError("a does not answer")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        assert (await status(work, made.id), log) == ("failed", ["a", "?a", "-a"])


async def test_a_retried_saga_has_the_attempts_it_was_given(server: Server) -> None:
    trip = Trip(server, max_attempts=2)
    trip.error = OSError("full")
    async with working(server) as work:
        made = await work.submit("default.trip")
        for _ in range(3):
            await work.worker().drain()
            assert (await status(work, made.id), trip.log) == ("failed", BOOKED + UNDONE)
            assert (await work.retry(made.id)).max_attempts == 2
            trip.log.clear()


async def test_a_retried_saga_whose_worker_died_has_the_attempts_it_was_given(
    server: Server, clock: FakeClock
) -> None:
    trip = Trip(server, max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.trip")
        [claimed] = await work.worker().claim(1)
        await StepMemory(work.engine.store, work.clock).keep(
            claimed.held, DoneStep(new_id(), "car", "car", print), "car"
        )
        clock.advance(minutes(1))
        await work.worker().drain()
        assert (await status(work, made.id), trip.log) == ("failed", ["-car"])
        assert (await work.retry(made.id)).max_attempts == 1


async def test_a_saga_that_fails_while_the_database_is_away_is_taken_back_later(
    server: Server, clock: FakeClock
) -> None:
    trip = Trip(server, max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.trip")
        real = work.engine.store.bind

        def away(statement: str, /, **values: Any) -> Any:
            if statement == "allow":
                work.engine.store.bind = real  # type: ignore[method-assign]
                raise Unavailable
            return real(statement, **values)

        work.engine.store.bind = away  # type: ignore[method-assign]
        await work.worker().drain()
        assert (await status(work, made.id), trip.log) == ("pending", BOOKED)
        clock.advance(minutes(1))
        await work.worker().drain()
        assert (await status(work, made.id), trip.log) == ("failed", BOOKED + UNDONE)


async def test_a_saga_that_begins_anew_has_children_anew(server: Server) -> None:
    broken = True

    @server.work.handler("default.child", max_attempts=1)
    async def child(run: Run) -> str:
        if broken:
            raise ValueError("broken")
        return "mended"

    @server.work.handler("default.parent", max_attempts=1)
    async def parent(run: Run) -> str:
        await run.step("a", bool, compensate=bool)
        return str(await run.call("default.child"))

    async def worked() -> None:
        worker = work.worker()
        while await worker.drain():
            await asyncio.gather(*work.engine._tasks)

    async with working(server) as work:
        made = await work.submit("default.parent")
        await worked()
        assert await status(work, made.id) == "failed"
        broken = False
        await work.retry(made.id)
        await worked()
        assert (await work.get(made.id)).result == "mended"
