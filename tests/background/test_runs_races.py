"""Everything at once: workers, cancels, retries, deletions, signals and expiring leases on the same runs."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import pytest

from maniflex import Run, Server
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.store import RunStore
from maniflex.db.current import detached_context
from maniflex.db.port import Tx
from maniflex.errors import Conflict, NotFound
from tests.kit.postgres import execute, fetch_value
from tests.kit.runs import kinds, no_pause, seconds, working
from tests.kit.waiting import eventually

RUNS = 40
ENDS = ("succeeded", "failed", "cancelled")


async def test_a_cancel_and_an_outcome_that_meet_leave_one_of_them(database_url: str) -> None:
    server = Server(database_url, pool_size=6)
    chance = random.Random(1)

    @server.work.handler("default.meet", max_attempts=1)
    async def meet(run: Run) -> None:
        await asyncio.sleep(chance.uniform(0, 0.02))
        if run.payload % 2:
            raise ValueError

    async def cancel(work: Work, id: str) -> bool:
        await asyncio.sleep(chance.uniform(0, 0.06))
        try:
            await work.cancel(id)
        except Conflict:
            return False
        return True

    async with working(server) as work:
        made = await work.submit_many("default.meet", range(RUNS))
        worker = work.worker(concurrency=RUNS)
        cancels = asyncio.gather(*(cancel(work, run.id) for run in made))
        await worker.drain()
        for run, cancelled in zip(made, await cancels, strict=True):
            done = await work.get(run.id)
            ended = [kind for kind in await kinds(work, run.id) if kind in ENDS]
            assert ended == [done.status]
            assert (done.status == "cancelled") is cancelled
            assert (done.lease, done.lease_until, done.leased_by) == (None, None, None)


@pytest.mark.parametrize("deleted", ["before its id is read", "before its row is read"])
async def test_a_key_whose_run_is_deleted_while_it_is_submitted_again_gets_a_new_run(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    by_keys = RunStore.by_keys
    doomed = ["b"]

    async def deleting(store: RunStore, keys: Sequence[str], tx: Tx | None = None) -> dict[str, str]:
        """The same look, beside another process that deletes a run just then."""
        ids = await by_keys(store, keys, tx) if deleted == "before its row is read" else {}
        if doomed:
            text = f"UPDATE workflow_run SET deleted_at = now() WHERE idempotency_key = '{doomed.pop()}'"
            await execute(postgres_url, text)
        return ids or await by_keys(store, keys, tx)

    server = Server(postgres_url, background=False)
    server.work.enable()
    async with working(server) as work:
        first = await work.submit_many("default.keyed", [1, 2, 3], idempotency_keys=["a", "b", "c"])
        monkeypatch.setattr(RunStore, "by_keys", deleting)
        again = await work.submit_many("default.keyed", [1, 2, 3], idempotency_keys=["a", "b", "c"])
        doomed.append("a")
        one = await work.submit("default.keyed", 1, idempotency_key="a")

    assert [mine.id == theirs.id for mine, theirs in zip(again, first, strict=True)] == [True, False, True]
    assert one.id not in {run.id for run in (*first, *again)}


async def test_in_a_storm_no_run_is_worked_on_twice_at_once_and_none_is_left_behind(
    database_url: str, long_mode: bool
) -> None:
    server = Server(database_url, pool_size=8, work_poll_interval=timedelta(milliseconds=20))
    chance = random.Random(2)
    running: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    clashes: list[str] = []

    @server.work.handler("default.storm", max_attempts=4, backoff=no_pause)
    async def storm(run: Run) -> None:
        running[run.id] += 1
        if run.group_key:
            groups[run.group_key] += 1
        if running[run.id] > 1 or groups[run.group_key or ""] > 1:
            clashes.append(run.id)
        try:
            await run.step("first", lambda: chance.random())
            if chance.random() < 0.3:
                await run.sleep(0.01)
            if chance.random() < 0.2:
                await run.wait_for("go", 0.05)
            await asyncio.sleep(chance.uniform(0, 0.02))
            if chance.random() < 0.3:
                raise ValueError("unlucky")
        finally:
            running[run.id] -= 1
            if run.group_key:
                groups[run.group_key] -= 1

    async def trouble(work: Work, ids: list[str], rounds: int) -> None:
        for _ in range(rounds):
            id = chance.choice(ids)
            what = chance.choice(("cancel", "retry", "retry", "signal", "delete", "look"))
            with suppress(Conflict, NotFound, TimeoutError):
                if what == "cancel":
                    await work.cancel(id)
                elif what == "retry":
                    await work.retry(id)
                elif what == "signal":
                    await work.signal(id, "go")
                elif what == "delete" and chance.random() < 0.1:
                    await work.delete(id, "storm")
                else:
                    await work.wait(id, 0.01)
            await asyncio.sleep(chance.uniform(0, 0.01))

    async with working(server) as work:
        made = [*await work.submit_many("default.storm", range(RUNS // 2))]
        made += await work.submit_many("default.storm", range(RUNS // 4), group_key="a")
        made += await work.submit_many("default.storm", range(RUNS // 4), group_key="b")
        workers = [work.worker(concurrency=6, lease=seconds(5)) for _ in range(3)]
        for worker in workers:
            await worker.start()
        ids = [run.id for run in made]
        await asyncio.gather(*(trouble(work, ids, 400 if long_mode else 60) for _ in range(4)))

        async def calm() -> bool:
            left = "SELECT id FROM workflow_run WHERE status IN ('pending', 'leased') AND deleted_at IS NULL"
            return not await server.raw_query(left)

        await eventually(calm, "the end of every run")
        for worker in workers:
            await worker.stop()
        held = await server.raw_query("SELECT id, status FROM workflow_run WHERE lease_until IS NOT NULL")
        for id in ids:
            happened = await kinds(work, id)
            # What ended once ends again only after somebody asked for a retry.
            ends = [kind for kind in happened if kind in (*ENDS, "retried")]
            assert all(a not in ENDS or b == "retried" for a, b in itertools.pairwise(ends)), happened
    assert (clashes, held) == ([], [])


async def wait_for_waiting(url: str, count: int) -> None:
    """Until so many backends of this database wait for another's transaction."""
    text = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def is_so() -> bool:
        return bool(await fetch_value(url, text) >= count)

    await eventually(is_so, f"{count} wait for a lock")


async def test_two_that_submit_the_same_keys_in_another_order_do_not_deadlock(postgres_url: str) -> None:
    server = Server(postgres_url, background=False)
    server.work.enable()
    async with working(server) as work:
        with suppress(ZeroDivisionError):
            async with server.transaction():
                await work.submit("default.keyed", 1, idempotency_key="m")
                both = [
                    asyncio.create_task(
                        work.submit_many("default.keyed", [1, 2, 3], idempotency_keys=keys),
                        context=detached_context(),
                    )
                    for keys in (["a", "m", "b"], ["b", "m", "a"])
                ]
                await wait_for_waiting(postgres_url, 2)
                raise ZeroDivisionError  # the key is free again
        first, second = await asyncio.gather(*both)

    assert [run.id for run in first] == [run.id for run in reversed(second)]


async def test_a_key_that_is_freed_between_others_is_not_taken_out_of_order(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_keys, others = RunStore.by_keys, list[asyncio.Task[Sequence[WorkflowRun]]]()

    async def racing(store: RunStore, keys: Sequence[str], tx: Tx | None = None) -> dict[str, str]:
        """The run is deleted before it is read, and another takes its key and waits for the rest."""
        if not others:
            await execute(postgres_url, "UPDATE workflow_run SET deleted_at = now()")
            submitting = work.submit_many("default.keyed", [1, 2], idempotency_keys=["a", "b"])
            others.append(asyncio.create_task(submitting, context=detached_context()))
            await wait_for_waiting(postgres_url, 1)
        return await by_keys(store, keys, tx)

    server = Server(postgres_url, background=False)
    server.work.enable()
    async with working(server) as work:
        await work.submit("default.keyed", 1, idempotency_key="a")
        monkeypatch.setattr(RunStore, "by_keys", racing)
        mine = await work.submit_many("default.keyed", [1, 2], idempotency_keys=["a", "b"])
        theirs = await others[0]

    assert [run.id for run in mine] == [run.id for run in theirs]
