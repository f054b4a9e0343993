"""Jobs that are over are removed in time, whatever ids they have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from maniflex import Server
from maniflex.background.jobs import Job
from maniflex.background.runs.claimer import Pruner
from maniflex.background.runs.model import WorkflowRun
from maniflex.testing.clock import FakeClock

OWN = ("000-first", "01000000", "order-7", "Zürich 1", "f81d4fae-7dec-41d0-a765-00a0c91e6bf6", "\U0001f4e6")


async def test_jobs_with_ids_of_the_application_are_removed_like_all_others(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))  # ids tell the time of the machine
    server = Server(database_url, clock=clock, background=False)

    @server.jobs.handler("note")
    async def note(job: Job) -> None: ...

    async with server.lifespan():
        for id in (*OWN, ""):
            await server.jobs.enqueue("note", id=id)
        later = clock.now() + timedelta(days=90)
        await server.jobs.enqueue_at("note", later, id="waits")
        await server.work.worker().drain()
        pruner = Pruner(server.work.engine)

        await pruner.tick()
        assert await server.db(WorkflowRun).count() == len(OWN) + 2
        clock.advance(timedelta(days=31))
        await server.jobs.enqueue("note", id="new")
        await server.work.worker().drain()
        await pruner.tick()

        assert {run.id for run in await server.db(WorkflowRun).list()} == {"waits", "new"}


async def test_looking_for_old_runs_goes_on_from_one_range_of_ids_to_the_next(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))
    server = Server(database_url, clock=clock, background=False)

    @server.jobs.handler("note")
    async def note(job: Job) -> None: ...

    async with server.lifespan():
        for n in range(5):
            await server.jobs.enqueue("note", id=f"order-{n}")
            await server.jobs.enqueue("note")
        await server.work.worker().drain()
        clock.advance(timedelta(days=31))
        before = clock.now() - timedelta(days=30)

        places, removed = [""], 0
        while True:
            some, after = await server.work.engine.store.prune(before, 2, after=places[-1], look=3)
            removed += some
            places.append(after)
            if not after:
                break

        assert removed == 10
        assert places == [*sorted(places[:-1]), ""]
        assert len(places) == 5
