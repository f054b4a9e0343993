"""How many jobs a process has at once, whatever queue they are in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.background.jobs import InProcessQueue, Job
from maniflex.background.runs.handlers import ranges_without
from maniflex.background.runs.worker import RunWorker
from maniflex.errors import DeclarationError


class Room:
    """Jobs that stay until they are let go, and how many there were at the same time."""

    def __init__(self, wanted: int) -> None:
        self.now = self.most = 0
        self.full, self.may_end = asyncio.Event(), asyncio.Event()
        self._wanted = wanted

    async def stay(self, job: Job) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self._wanted:
            self.full.set()
        await self.may_end.wait()
        self.now -= 1


@pytest.mark.parametrize("queue", ["runs", "memory"])
async def test_a_process_has_so_many_jobs_at_once_and_other_runs_beside(
    database_url: str, queue: str
) -> None:
    room, server = Room(2), Server(database_url)
    server.jobs.use(InProcessQueue() if queue == "memory" else None, concurrency=2)
    server.jobs.handler("default.stay")(room.stay)
    server.jobs.handler("stay")(room.stay)

    @server.work.handler("default.other")
    async def other(run: Run) -> None: ...

    async with server.lifespan(), asyncio.timeout(30):
        for type in ("default.stay", "stay", "default.stay", "stay", "stay"):
            await server.jobs.enqueue(type)
        await room.full.wait()
        for run in await server.work.submit_many("default.other", [{}] * 20):
            assert (await server.work.wait(run.id)).status == "succeeded"
        busy = room.now
        room.may_end.set()
        last = await server.jobs.enqueue("stay")
        if queue == "runs":
            await server.work.wait(last)

    assert (busy, room.most) == (2, 2)


async def workers_of(server: Server, *prefixes: str) -> list[RunWorker]:
    return [one for one in server.work.services(prefixes) if isinstance(one, RunWorker)]


async def test_without_a_concurrency_jobs_share_the_worker_of_runs(sqlite_url: str) -> None:
    server = Server(sqlite_url, background=False)
    server.jobs.handler("stay")(Room(1).stay)

    async with server.lifespan():
        assert [w.concurrency for w in await workers_of(server)] == [server.config.work_concurrency]


async def test_a_worker_of_prefixes_leaves_the_jobs_of_others_alone(database_url: str) -> None:
    server = Server(database_url, background=False)
    server.jobs.use(concurrency=3)
    done: list[str] = []

    async def note(job: Job) -> None:
        done.append(job.type)

    for type in ("mail.send", "media.scale"):
        server.jobs.handler(type)(note)

    @server.work.handler("mail.sort")
    async def sort(run: Run) -> None:
        done.append(run.type)

    async with server.lifespan():
        for type in ("mail.send", "media.scale"):
            await server.jobs.enqueue(type)
        await server.work.submit("mail.sort")
        shared, jobs = await workers_of(server, "mail.")
        assert (shared.concurrency, jobs.concurrency) == (10, 3)
        counts = [await worker.drain() for worker in (shared, jobs)]

    assert (counts, done) == ([1, 1], ["mail.sort", "mail.send"])


@pytest.mark.parametrize("concurrency", [0, -1, 2.5, True, "4"])
def test_a_concurrency_there_cannot_be_is_refused(concurrency: Any) -> None:
    with pytest.raises(DeclarationError, match="a whole number above zero"):
        Server().jobs.use(concurrency=concurrency)


@pytest.mark.parametrize(
    ("ranges", "types", "left"),
    [
        ([("a", "b")], [], [("a", "b")]),
        ([("a", "a\x01")], ["a"], []),
        ([("a.", "a/")], ["a.x"], [("a.", "a.x"), ("a.x\x01", "a/")]),
        ([("a.", "a/")], ["a.x", "a.y"], [("a.", "a.x"), ("a.x\x01", "a.y"), ("a.y\x01", "a/")]),
        ([("a.", "a/"), ("b", "b\x01")], ["c"], [("a.", "a/"), ("b", "b\x01")]),
    ],
)
def test_types_are_cut_out_of_ranges(ranges: Any, types: list[str], left: Any) -> None:
    assert ranges_without(ranges, types) == left
