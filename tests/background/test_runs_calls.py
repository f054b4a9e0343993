"""Calls of other runs: made anew by a retry, and heard of at once by all who wait."""

from __future__ import annotations

from datetime import timedelta

import pytest

from maniflex import Run, RunFailed, Server
from maniflex.testing.clock import FakeClock
from tests.kit.runs import no_pause, status, working
from tests.kit.waiting import eventually


class Family:
    """A parent that calls a child, which fails while it is told to."""

    def __init__(self, server: Server) -> None:
        self.child_fails = self.parent_fails = True
        self.children = 0
        server.work.handler("default.parent", max_attempts=1)(self.parent)
        server.work.handler("default.child", max_attempts=1)(self.child)

    async def parent(self, run: Run) -> int:
        result = await run.call("default.child", name="only")
        if self.parent_fails:
            raise ValueError("no")
        return int(result)

    async def child(self, run: Run) -> int:
        self.children += 1
        if self.child_fails:
            raise ValueError("not yet")
        return self.children


async def test_a_retried_parent_makes_the_call_anew_that_failed(server: Server) -> None:
    family = Family(server)
    family.parent_fails = False
    async with working(server) as work:
        made = await work.submit("default.parent")
        await work.worker().drain()
        assert (await status(work, made.id), family.children) == ("failed", 1)
        family.child_fails = False
        await work.retry(made.id)
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.result, family.children) == ("succeeded", 2, 2)


async def test_a_retried_parent_keeps_the_call_that_succeeded(server: Server) -> None:
    family = Family(server)
    family.child_fails = False
    async with working(server) as work:
        made = await work.submit("default.parent")
        await work.worker().drain()
        assert await status(work, made.id) == "failed"
        family.parent_fails = False
        await work.retry(made.id)
        await work.worker().drain()
        assert ((await work.get(made.id)).result, family.children) == (1, 1)


async def test_a_call_whose_child_failed_before_its_parent_heard_of_it_is_made_anew(server: Server) -> None:
    family = Family(server)
    family.parent_fails = False
    async with working(server) as work:
        made = await work.submit("default.parent")
        await work.worker(["default.parent"]).drain()
        await work.cancel(made.id)
        await work.worker().drain()
        assert family.children == 1
        family.child_fails = False
        await work.retry(made.id)
        await work.worker().drain()
        assert (await work.get(made.id)).result == 2


@pytest.mark.parametrize("how", ["succeeds", "fails", "is cancelled", "has no parent"])
async def test_all_who_wait_for_a_run_by_its_key_are_woken_at_once(
    server: Server, clock: FakeClock, how: str
) -> None:
    @server.work.handler("default.parent", max_attempts=1)
    async def parent(run: Run) -> str:
        try:
            return str(await run.call("default.shared", idempotency_key="shared", delay=timedelta(hours=5)))
        except RunFailed as error:
            return error.status

    @server.work.handler("default.shared", max_attempts=1, backoff=no_pause)
    async def shared(run: Run) -> str:
        if how == "fails":
            raise ValueError("no")
        return "shared"

    async with working(server) as work:
        if how == "has no parent":
            await work.submit("default.shared", idempotency_key="shared", delay=timedelta(hours=5))
        parents = await work.submit_many("default.parent", range(3))
        worker = work.worker()
        await worker.drain()
        [child] = await work.list(type="default.shared")
        clock.advance(timedelta(hours=4))
        await worker.drain()  # each looks again, and then rarely
        if how == "is cancelled":
            await work.cancel(child.id)
        else:
            clock.advance(timedelta(hours=1, minutes=-59))
            await server.raw_exec(
                f"UPDATE workflow_run SET run_at = '{clock.now().isoformat()}' WHERE id = '{child.id}'"
            )
            assert await worker.run_once() >= 1

        async def all_over() -> bool:
            await worker.drain()
            return all([(await work.get(run.id)).finished for run in parents])

        await eventually(all_over, "the parents", 20)
        results = [(await work.get(run.id)).result for run in parents]
    expected = {"fails": "failed", "is cancelled": "cancelled"}.get(how, "shared")
    assert results == [expected] * 3
