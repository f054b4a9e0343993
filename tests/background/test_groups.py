"""What a handler's tasks raise together counts as if it had raised it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import Fatal
from maniflex.testing.clock import FakeClock
from tests.kit.outbox import a_bench
from tests.kit.runs import minutes, no_pause, working

Branch = Callable[[Run], Awaitable[Any]]


async def fatal(run: Run) -> None:
    raise Fatal("for good")


async def error(run: Run) -> None:
    raise ValueError("secret")


async def retry(run: Run) -> None:
    run.retry_in(minutes(5), "soon")


async def retry_later(run: Run) -> None:
    run.retry_in(minutes(7), "later")


async def sleep(run: Run) -> None:
    await run.sleep(minutes(3))


async def within(run: Run) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fatal(run))


async def came_of(server: Server, *branches: Branch) -> WorkflowRun:
    """The run after an attempt whose branches raise side by side."""
    ready = asyncio.Barrier(len(branches))

    async def begin(branch: Branch, run: Run) -> None:
        await ready.wait()
        await branch(run)

    @server.work.handler("default.group", max_attempts=3, backoff=no_pause)
    async def handle(run: Run) -> None:
        await run.step("first", str)
        async with asyncio.TaskGroup() as group:
            for branch in branches:
                group.create_task(begin(branch, run))

    async with working(server) as work:
        made = await work.submit("default.group")
        await work.worker(concurrency=1).run_once()
        return await work.get(made.id)


@pytest.mark.parametrize("branches", [(fatal,), (error, fatal), (within,), (retry, fatal)])
async def test_a_fatal_of_one_task_ends_the_run_with_its_own_text(
    server: Server, branches: tuple[Branch, ...]
) -> None:
    run = await came_of(server, *branches)
    assert (run.status, run.attempt, (run.error or {})["code"]) == ("failed", 1, "fatal")
    assert run.last_error == "Fatal: for good"


@pytest.mark.parametrize(("branches", "delay"), [((retry,), 5), ((retry, retry_later), 7)])
async def test_tasks_that_ask_for_a_retry_get_it_when_the_last_one_wants_it(
    server: Server, clock: FakeClock, branches: tuple[Branch, ...], delay: int
) -> None:
    run = await came_of(server, *branches)
    assert (run.status, (run.error or {})["code"]) == ("pending", "retry")
    assert run.run_at == clock.now() + minutes(delay)


async def test_a_pause_in_a_task_is_a_pause_of_the_run(server: Server, clock: FakeClock) -> None:
    run = await came_of(server, sleep)
    assert (run.status, run.attempt, run.last_error) == ("pending", 0, None)
    assert run.run_at == clock.now() + minutes(3)


@pytest.mark.parametrize("branches", [(error,), (retry, error)])
async def test_other_failures_are_named_one_by_one_and_tried_again(
    server: Server, clock: FakeClock, branches: tuple[Branch, ...]
) -> None:
    run = await came_of(server, *branches)
    assert (run.status, run.run_at) == ("pending", clock.now())
    assert "ValueError: secret" in str(run.last_error)


async def test_a_run_cancelled_in_a_task_is_let_go(server: Server) -> None:
    async def cancel(run: Run) -> None:
        await server.work.cancel(run.id)
        await run.heartbeat()

    run = await came_of(server, cancel)
    assert (run.status, run.lease, run.last_error) == ("cancelled", None, None)


async def test_a_fatal_in_a_task_of_an_outbox_handler_ends_its_message(database_url: str) -> None:
    def declare(outbox: Outbox) -> None:
        @outbox.handler("bad", timeout=timedelta(minutes=1))
        async def handle(message: Message) -> None:
            raise ExceptionGroup("both", [ValueError("no"), Fatal("for good")])

    async with a_bench(database_url, declare, outbox_max_attempts=5) as bench:
        await bench.enqueue(("bad", None))
        await bench.drain()
        [row] = await bench.rows()
    assert (row.status, row.attempts) == ("dead", 1)
    assert str(row.last_error).endswith("ValueError: no; Fatal: for good")
