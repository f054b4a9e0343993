"""A worker that comes back after it was given up for dead writes nothing any more; one whose loop is
blocked was never dead."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from maniflex import Server
from tests.kit.crowd import a_submitter, count, crowd
from tests.kit.runs import kinds, working
from tests.kit.waiting import eventually

LEASE = 1.0
RUNS = 12


async def finished(server: Server) -> bool:
    return not await count(server, "status IN ('pending', 'leased')")


async def test_a_worker_stopped_for_three_leases_settles_nothing_when_it_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    server = a_submitter(database_url)
    with crowd(database_url, tmp_path) as workers:
        async with working(server) as work:
            zombie = workers.start(lease=LEASE, concurrency=RUNS)
            made = await work.submit_many("default.pause", [{"seconds": 0.8}] * RUNS)

            async def all_begun() -> bool:
                return len(workers.entries("start")) == RUNS

            await eventually(all_begun, "a start of every run")
            workers.send(zombie, signal.SIGSTOP)
            other = workers.start(lease=LEASE, concurrency=RUNS)
            await asyncio.sleep(3 * LEASE)  # a stopped process sends no signal that its leases have run out
            await eventually(lambda: finished(server), "the other worker to finish")
            workers.send(zombie, signal.SIGCONT)

            # It lives and works on: alone, it finishes another run.
            workers.send(other, signal.SIGKILL)
            later = await work.submit("default.pause", {"seconds": 0})
            assert (await work.wait(later.id, 30)).result == zombie

            for run in made:
                done = await work.get(run.id)
                assert (done.status, done.attempt, done.result) == ("succeeded", 2, other)
                assert (await kinds(work, run.id)).count("succeeded") == 1
            steps = await server.raw_query("SELECT workflow_id, result FROM workflow_step")
            assert {str(step["result"]) for step in steps if step["workflow_id"] != later.id} == {str(other)}
    assert {entry.pid for entry in workers.entries("start")} == {zombie, other}


async def test_a_handler_that_blocks_its_loop_for_three_leases_is_not_run_twice(
    database_url: str, tmp_path: Path
) -> None:
    server = a_submitter(database_url)
    with crowd(database_url, tmp_path) as workers:
        async with working(server) as work:
            blocked = workers.start(lease=LEASE, concurrency=6)
            blocking = await work.submit("default.block", {"seconds": 3 * LEASE})
            beside = await work.submit_many("default.pause", [{"seconds": 0.01}] * 5)

            async def begun() -> bool:
                return any(entry.run_id == blocking.id for entry in workers.entries("start"))

            await eventually(begun, "the start of the blocking run")
            other = workers.start(lease=LEASE, concurrency=6)
            done = await work.wait(blocking.id, 40)
            assert (done.status, done.attempt, done.result) == ("succeeded", 1, blocked)
            for run in beside:
                assert (await work.wait(run.id, 40)).attempt == 1
    starts = workers.starts()
    assert {len(entries) for entries in starts.values()} == {1}
    assert other not in workers.killed
