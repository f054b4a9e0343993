"""However a run ends that owes compensations: it takes its steps back, or says that it could not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import Run, Server
from maniflex._ids import new_id
from maniflex.background.runs.step_memory import UNDO_ATTEMPTS, DoneStep, StepMemory
from maniflex.db.current import transaction
from maniflex.errors import Fatal, RunCancelled
from maniflex.testing.clock import FakeClock
from tests.kit.internals import rescue_expired
from tests.kit.panics import NAMES, panics
from tests.kit.runs import minutes, no_pause, working
from tests.kit.waiting import eventually


def a_saga(server: Server, log: list[str], error: Any, **options: Any) -> None:
    """Does one thing that can be taken back, then fails."""

    @server.work.handler("default.saga", backoff=no_pause, **options)
    async def saga(run: Run) -> None:
        await run.step("book", log.append, "+", compensate=lambda _: log.append("-"))
        raise error(run)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
async def test_a_saga_is_taken_back_whatever_it_ends_by(server: Server, number: int) -> None:
    log: list[str] = []
    a_saga(server, log, lambda run: panics()[number], max_attempts=2)
    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        done = await work.get(made.id)
        last = (await work.events(made.id))[-1]
    assert (done.status, log) == ("failed", ["+", "-"])
    assert NAMES[number] in str(done.last_error)
    assert (last.event_type, (last.data or {})["taken_back"]) == ("failed", ["book"])


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
async def test_a_step_is_taken_back_whatever_the_one_beside_it_ends_by(server: Server, number: int) -> None:
    log: list[str] = []

    async def bad() -> None:
        await asyncio.sleep(0)
        raise panics()[number]

    @server.work.handler("default.saga", backoff=no_pause, max_attempts=2)
    async def saga(run: Run) -> None:
        await run.step("book", log.append, "+", compensate=lambda _: log.append("-"))
        await asyncio.gather(run.step("bad", bad), run.step("good", asyncio.sleep, 0))

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.attempt, log) == ("failed", 2, ["+", "-"])
    assert NAMES[number] in str(done.last_error)


async def test_a_compensation_is_tried_again_whatever_it_raises(server: Server) -> None:
    errors = panics()
    log: list[str] = []

    @server.work.handler("default.saga", backoff=no_pause, max_attempts=1)
    async def saga(run: Run) -> None:
        async def undo(_: Any) -> None:
            if errors:
                raise errors.pop()
            log.append("-")

        await run.step("book", log.append, "+", compensate=undo)
        raise ValueError("no")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, (done.error or {})["code"], log) == ("failed", "error", ["+", "-"])


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
async def test_a_step_that_was_rolled_back_is_not_taken_back(
    server: Server, transactional: bool, inside: bool
) -> None:
    log: list[str] = []

    @server.work.handler("default.saga", backoff=no_pause, max_attempts=3)
    async def saga(run: Run) -> None:
        async def book(name: str) -> None:
            options: Any = {"compensate": lambda _: log.append(f"-{name}"), "transactional": transactional}
            await run.step(name, log.append, name, **options)

        await book("zero")
        try:
            async with server.transaction():
                await book("one")
                raise Fatal("within") if inside else ValueError("no")
        except ValueError:
            pass
        async with server.transaction():
            await book("two")
        raise Fatal("later")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        done = await work.get(made.id)
    assert log == (["zero", "one", "-zero"] if inside else ["zero", "one", "two", "-two", "-zero"])
    assert (done.status, (done.error or {})["code"], done.attempt) == ("failed", "fatal", 1)


async def test_a_step_whose_commit_nobody_heard_of_is_taken_back(server: Server) -> None:
    """The transaction is committed, and the handler dies of something before it is told."""
    log: list[str] = []

    @server.work.handler("default.saga", backoff=no_pause, max_attempts=1)
    async def saga(run: Run) -> None:
        adapter = server.work.engine.store.adapter
        async with transaction(adapter) as tx:
            await run.step("book", log.append, "+", compensate=lambda _: log.append("-"))
            tx._after_commit.clear()  # type: ignore[attr-defined]
        raise ValueError("no")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, log) == ("failed", ["+", "-"])


async def test_a_step_that_is_not_stored_can_be_taken_back_as_long_as_the_run_is_ours(
    server: Server, clock: FakeClock
) -> None:
    async def none(run: Run) -> None: ...

    server.work.handler("default.none")(none)
    async with working(server) as work:
        made = await work.submit("default.none")
        [claimed] = await work.worker().claim(1)
        memory = StepMemory(work.engine.store, clock)
        await memory.mark_compensated(claimed.held, "nothing")
        assert memory.is_compensated("nothing")
        await work.cancel(made.id)
        with pytest.raises(RunCancelled):
            await memory.mark_compensated(claimed.held, "nothing")


class Strict(BaseModel):
    number: int


async def _half_done(server: Server, log: list[str]) -> str:
    """A run that did its step and is to be tried again."""
    a_saga(server, log, lambda run: ValueError("no"), max_attempts=5)
    async with working(server) as work:
        made = await work.submit("default.saga", {"text": "x"})
        await work.worker().run_once()
        assert (await work.get(made.id)).status == "pending"
        return made.id


async def test_a_saga_whose_payload_no_longer_fits_says_what_it_left_behind(
    database_url: str, clock: FakeClock
) -> None:
    log: list[str] = []
    id = await _half_done(Server(database_url, clock=clock), log)
    newer = Server(database_url, clock=clock)
    a_saga(newer, log, lambda run: ValueError("no"), payload=Strict)
    async with working(newer) as work:
        await work.worker().drain()
        done = await work.get(id)
    assert (done.status, (done.error or {})["code"], log) == ("failed", "compensation_failed", ["+"])
    assert "does not fit" in str(done.last_error)
    assert "not taken back: book" in str(done.last_error)


async def test_a_saga_whose_handler_is_missing_says_what_it_left_behind_and_may_be_retried(
    database_url: str, clock: FakeClock
) -> None:
    log: list[str] = []
    server = Server(database_url, clock=clock)
    id = await _half_done(server, log)
    other = Server(database_url, clock=clock)
    other.work.enable()
    async with working(other) as work:
        await work.worker(["default."]).drain()
        done = await work.get(id)
        assert (done.status, (done.error or {})["code"]) == ("failed", "compensation_failed")
        assert "no handler is registered for default.saga; these steps are not taken back: book" in str(
            done.last_error
        )
    again = Server(database_url, clock=clock)
    a_saga(again, log, lambda run: ValueError("no"))
    async with working(again) as work:
        await work.retry(id)
        await work.worker().drain()
        assert ((await work.get(id)).status, log) == ("failed", ["+", "-"])


async def test_a_saga_whose_workers_die_on_the_way_back_says_so(server: Server, clock: FakeClock) -> None:
    log: list[str] = []
    a_saga(server, log, lambda run: ValueError("no"), max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.saga")
        [claimed] = await work.worker().claim(1)
        memory = StepMemory(work.engine.store, work.clock)
        await memory.keep(claimed.held, DoneStep(new_id(), "book", "book", print), None)
        for _ in range(UNDO_ATTEMPTS):
            clock.advance(minutes(1))
            await rescue_expired(work.worker())
            assert len(await work.worker().claim(1)) == 1
        clock.advance(minutes(1))
        await rescue_expired(work.worker())
        done = await work.get(made.id)
    assert (done.status, (done.error or {})["code"], log) == ("failed", "compensation_failed", [])


async def test_a_worker_that_stops_on_the_way_back_does_not_let_the_run_go_forward(
    database_url: str,
) -> None:
    """The attempt counts: the next one has to know that it only goes back."""
    server = Server(database_url, pool_size=4)
    calls: list[str] = []
    going_back = asyncio.Event()

    @server.work.handler("default.saga", backoff=no_pause, max_attempts=1)
    async def saga(run: Run) -> str:
        calls.append("call")
        if len(calls) == 1 or going_back.is_set():
            await run.step("book", calls.append, "+", compensate=undo)
        if len(calls) < 3:
            raise ValueError("no")
        return "forward again"

    async def undo(_: Any) -> None:
        if not going_back.is_set():
            going_back.set()
            await asyncio.Event().wait()
        calls.append("-")

    async with working(server) as work:
        worker = work.worker()
        await worker.start()
        made = await work.submit("default.saga")
        await asyncio.wait_for(going_back.wait(), 30)
        await worker.stop(timedelta(0))
        released = await work.get(made.id)
        assert (released.status, released.attempt) == ("pending", 1)
        await eventually(lambda: worker.busy == 0, "the end of the attempt")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, calls) == ("failed", ["call", "+", "call", "-"])
