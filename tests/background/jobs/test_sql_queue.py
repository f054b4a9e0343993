"""Jobs that are runs: what `SqlQueue` takes, the workers of runs work on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from maniflex import Run, Server
from maniflex.background.jobs import Job, SqlQueue, Worker
from maniflex.errors import Conflict, DeclarationError, NotFound, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.runs import no_pause, status, working
from tests.kit.waiting import eventually

EMAIL = "email.send"
SOON = timedelta(minutes=10)


class Shop:
    """A server with one kind of job, and the jobs its handler was given."""

    def __init__(self, url: str, clock: FakeClock | None = None) -> None:
        self.jobs: list[Job] = []
        self.clock = clock or FakeClock()
        self.server = Server(url, clock=self.clock, background=False)
        self.server.jobs.handler(EMAIL, backoff=no_pause)(self.send)

    async def send(self, job: Job) -> None:
        self.jobs.append(job)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SqlQueue]:
        async with working(self.server) as work:
            yield SqlQueue(work)

    async def delivered_ids(self) -> list[str]:
        """The ids of the jobs that are due now, worked on one by one."""
        self.jobs.clear()
        await self.server.work.worker(concurrency=1).drain()
        return [job.id for job in self.jobs]


@pytest.fixture
def shop(database_url: str) -> Shop:
    return Shop(database_url)


async def test_a_job_is_delivered_as_it_was_enqueued(shop: Shop) -> None:
    async with shop.open() as queue:
        original = Job(EMAIL, {"to": ["ada", None, 1.5]}, "ada", "red", "trace-1", 7, group_key="g")
        id = await queue.enqueue(original)
        assert await shop.delivered_ids() == [id]

    [job] = shop.jobs
    assert (job.id, job.type, job.payload) == (id, EMAIL, {"to": ["ada", None, 1.5]})
    assert (job.actor_id, job.tenant_id, job.trace_id) == ("ada", "red", "trace-1")
    assert (job.max_retry, job.group_key, job.attempt) == (7, "g", 1)


async def test_jobs_come_in_the_order_they_went(shop: Shop) -> None:
    async with shop.open() as queue:
        ids = []
        for _ in range(5):
            ids.append(await queue.enqueue(Job(EMAIL)))
            shop.clock.advance(timedelta(milliseconds=1))

        assert await shop.delivered_ids() == ids


async def test_a_job_does_not_start_before_its_time(shop: Shop) -> None:
    async with shop.open() as queue:
        first = await queue.enqueue(Job(EMAIL, not_before=shop.clock.now() + SOON))
        second = await queue.enqueue_at(Job(EMAIL), shop.clock.now() + SOON * 2)

        shop.clock.advance(SOON - timedelta(milliseconds=1))
        assert await shop.delivered_ids() == []
        shop.clock.advance(timedelta(milliseconds=1))
        assert await shop.delivered_ids() == [first]
        shop.clock.advance(SOON)
        assert await shop.delivered_ids() == [second]


@pytest.mark.parametrize("id", ["mine", "a\x1eb", "\x1e", "a,b"])
async def test_an_id_of_ones_own_may_hold_any_text_and_is_used_once(shop: Shop, id: str) -> None:
    async with shop.open() as queue:
        assert await queue.enqueue(Job(EMAIL, 1, id=id)) == id
        with pytest.raises(Conflict):
            await queue.enqueue(Job(EMAIL, 2, id=id))

        assert await shop.delivered_ids() == [id]
        assert shop.jobs[0].payload == 1


@pytest.mark.parametrize(
    "wrong",
    [
        Job("no spaces"),
        Job(EMAIL, object()),
        Job(EMAIL, float("nan")),
        Job(EMAIL, "\x00"),
        Job(EMAIL, max_retry=0),
        Job(EMAIL, not_before=datetime(2026, 1, 1)),
        Job(EMAIL, group_key="x" * 1000),
    ],
    ids=["type", "object", "nan", "nul", "retries", "no zone", "long group"],
)
async def test_what_cannot_be_kept_is_refused(shop: Shop, wrong: Job) -> None:
    async with shop.open() as queue:
        with pytest.raises(ValidationFailed):
            await queue.enqueue(wrong)

        assert await shop.delivered_ids() == []


async def test_a_waiting_job_can_be_cancelled_wherever_it_waits(shop: Shop) -> None:
    async with shop.open() as queue:
        ready = await queue.enqueue(Job(EMAIL))
        later = await queue.enqueue_at(Job(EMAIL), shop.clock.now() + SOON)
        front = await queue.enqueue(Job(EMAIL, group_key="g"))
        behind = await queue.enqueue(Job(EMAIL, group_key="g"))
        last = await queue.enqueue(Job(EMAIL, group_key="g"))
        for id in (ready, later, behind, front):
            await queue.cancel(id)
        shop.clock.advance(SOON * 2)

        assert await shop.delivered_ids() == [last]


async def test_a_job_that_is_over_or_unknown_cannot_be_cancelled(shop: Shop) -> None:
    async with shop.open() as queue:
        await queue.enqueue(Job(EMAIL, id="over"))
        await shop.delivered_ids()

        with pytest.raises(NotFound):
            await queue.cancel("unknown")
        with pytest.raises(Conflict):
            await queue.cancel("over")


async def test_what_waits_is_there_for_the_next_process(shop: Shop, database_url: str) -> None:
    async with shop.open() as queue:
        id = await queue.enqueue(Job(EMAIL))

    another = Shop(database_url, shop.clock)
    async with another.open():
        assert await another.delivered_ids() == [id]


async def test_only_one_job_of_a_group_runs_at_a_time(database_url: str) -> None:
    shop, running, most = Shop(database_url), 0, 0

    @shop.server.jobs.handler("report.make")
    async def make(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with shop.open() as queue:
        for _ in range(4):
            await queue.enqueue(Job("report.make", group_key="red"))
        assert await shop.server.work.worker(concurrency=4).drain() == 4
    assert most == 1


async def test_a_parent_that_calls_a_job_is_woken_at_once(database_url: str) -> None:
    """And not when it would look again by itself: the clock stands still."""
    server = Server(database_url, clock=FakeClock(), background=False)

    @server.work.handler("default.parent")
    async def parent(run: Run) -> Any:
        return await run.call("email.slow", {"to": "ada"})

    @server.jobs.handler("email.slow")
    async def send(job: Job) -> str:
        await eventually(parent_waits, "the parent to leave its worker")
        await work.engine.wait_for_tasks()
        return "sent"

    async def parent_waits() -> bool:
        return (await work.get(made.id)).waiting_for is not None

    async def parent_is_done() -> bool:
        return await status(work, made.id) == "succeeded"

    async with working(server) as work:
        worker = work.worker(poll_interval=timedelta(hours=1))
        await worker.start()
        made = await work.submit("default.parent")
        await eventually(parent_is_done, "the parent to go on", patience=10)
        await worker.stop()
        assert (await work.get(made.id)).result == {"url": None, "output": "sent"}


async def test_a_job_whose_row_somebody_has_locked_is_not_done_again(postgres_url: str) -> None:
    server, begun, may_end = Server(postgres_url, pool_size=4), asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @server.jobs.handler(EMAIL)
    async def send(job: Job) -> None:
        attempts.append(job.attempt)
        begun.set()
        await may_end.wait()

    async with working(server) as work:
        id = await server.jobs.enqueue(EMAIL)
        draining = asyncio.create_task(work.worker().drain())
        await begun.wait()
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM workflow_run FOR UPDATE")
            may_end.set()
            finished, _ = await asyncio.wait([draining], timeout=0.3)
            assert not finished
        await connection.close()

        assert await asyncio.wait_for(draining, 30) == 1
        assert (await status(work, id), attempts) == ("succeeded", [1])


async def test_a_worker_of_jobs_refuses_a_queue_of_runs(shop: Shop) -> None:
    async with shop.open() as queue:
        source: Any = queue
        with pytest.raises(DeclarationError, match="no workers of its own"):
            Worker(source, {EMAIL: shop.send})
