"""Who gets which run, and in what order."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from maniflex import DatabaseError, Run, Server
from maniflex.testing.clock import FakeClock
from tests.kit.runs import is_free, minutes, seconds, status, succeeding, working


async def test_higher_priority_comes_first_then_the_longest_due(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)
    succeeding(server, "other.kind")
    async with working(server) as work:
        now = clock.now()
        for name, priority, late in (("c", 0, 1), ("d", 0, 0), ("a", 5, 0), ("e", -1, 9), ("b", 0, 2)):
            await work.submit("default.ok", name, priority=priority, run_at=now - minutes(late))
        worker = work.worker(concurrency=1)
        await worker.drain()
    assert [run.payload for run in seen] == ["a", "b", "c", "d", "e"]


async def test_runs_of_equal_rank_start_in_the_order_they_came(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        await work.submit_many("default.ok", range(20))
        for n in range(20, 30):
            await work.submit("default.ok", n)
        await work.worker(concurrency=4).drain()
    assert [run.payload for run in seen] == list(range(30))


async def test_priority_counts_across_types(server: Server) -> None:
    first = succeeding(server, "a.low")
    order: list[str] = []

    @server.work.handler("b.high")
    async def high(run: Run) -> None:
        order.append("high" if not first else "late")

    async with working(server) as work:
        await work.submit("a.low")
        await work.submit("b.high", priority=1)
        await work.worker(concurrency=1).drain()
    assert order == ["high"]


async def test_a_worker_without_prefixes_takes_what_it_handles_and_no_sibling(server: Server) -> None:
    succeeding(server, "email.a")
    async with working(server) as work:
        ours = await work.submit("email.a")
        others = [await work.submit(type) for type in ("email.b", "email.a.v2", "email.", "emai", "email")]
        await work.worker().drain()

        assert await status(work, ours.id) == "succeeded"
        assert {await status(work, run.id) for run in others} == {"pending"}


async def test_by_default_a_worker_also_takes_the_default_types(server: Server) -> None:
    succeeding(server, "email.a")
    async with working(server) as work:
        default = await work.submit("default.unknown")
        await work.worker().drain()
        assert (await work.get(default.id)).last_error == "no_handler_registered"


@pytest.mark.parametrize("configured", [True, False])
async def test_a_worker_takes_the_types_of_its_prefixes_alone(database_url: str, configured: bool) -> None:
    settings: dict[str, Any] = {"worker_type_prefixes": ("billing.", "mail.x")} if configured else {}
    server = Server(database_url, **settings)
    for type in ("billing.charge", "mail.x.send", "mail.y", "default.ok"):
        succeeding(server, type)
    async with working(server) as work:
        runs = [await work.submit(h.type) for h in work.handlers]
        worker = work.worker() if configured else work.worker(["billing.", "mail.x"])
        await worker.drain()
        done = [await status(work, run.id) for run in runs]
    assert done == ["succeeded", "succeeded", "pending", "pending"]


async def test_overlapping_prefixes_claim_a_run_once(server: Server) -> None:
    seen = succeeding(server, "a.b.c")
    async with working(server) as work:
        await work.submit_many("a.b.c", range(5))
        assert await work.worker(["a.", "a.b.", "a.b.c"]).drain() == 5
    assert len(seen) == 5


async def test_many_types_and_priorities_are_all_found(server: Server) -> None:
    seen = [succeeding(server, f"default.t{n}") for n in range(12)]
    async with working(server) as work:
        for n in range(12):
            for priority in (-3, 0, 7):
                await work.submit(f"default.t{n}", priority=priority)
        assert await work.worker(concurrency=5).drain() == 36
    assert [len(runs) for runs in seen] == [3] * 12


async def test_two_workers_never_have_the_same_run(server: Server) -> None:
    starts: Counter[str] = Counter()

    @server.work.handler("default.count")
    async def count(run: Run) -> None:
        starts[run.id] += 1
        await asyncio.sleep(0)

    async with working(server) as work:
        await work.submit_many("default.count", range(400))
        workers = [work.worker(concurrency=7) for _ in range(4)]
        assert sum(await asyncio.gather(*(worker.drain() for worker in workers))) == 400
    assert len(starts) == 400
    assert set(starts.values()) == {1}


# -- groups


async def test_of_a_group_one_runs_at_a_time_whoever_works(server: Server) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @server.work.handler("default.group")
    async def one(run: Run) -> None:
        key = run.group_key or ""
        running[key] += 1
        most[key] = max(most[key], running[key])
        for _ in range(20):
            await asyncio.sleep(0)
        running[key] -= 1

    async with working(server) as work:
        for key in ("a", "b", "c"):
            await work.submit_many("default.group", range(15), group_key=key)
        loose = await work.submit_many("default.group", range(15))
        workers = [work.worker(concurrency=6) for _ in range(3)]
        for _ in range(100):
            await asyncio.gather(*(worker.run_once() for worker in workers))
            if not await work.list(status="pending", limit=1):
                break
        assert {run.status for run in await work.list()} == {"succeeded"}
    assert len(loose) == 15
    assert {key: most[key] for key in "abc"} == {"a": 1, "b": 1, "c": 1}


async def test_a_group_runs_in_order(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        await work.submit_many("default.ok", range(10), group_key="g")
        await work.worker(concurrency=5).drain()
    assert [run.payload for run in seen] == list(range(10))


async def test_a_crashed_worker_does_not_wedge_its_group(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        await work.submit_many("default.ok", range(3), group_key="g")
        dead = await work.worker(concurrency=5).claim(5)
        assert len(dead) == 1
        assert await work.worker().drain() == 0
        clock.advance(minutes(1))
        assert await work.worker().drain() == 3
    assert sorted(run.payload for run in seen) == [0, 1, 2]


async def test_a_cancelled_run_keeps_its_group_until_its_handler_has_stopped(server: Server) -> None:
    tried: list[int] = []

    @server.work.handler("default.group")
    async def one(run: Run) -> None:
        if run.payload == 0:
            await server.work.cancel(run.id)
            tried.append(await server.work.worker().run_once())

    async with working(server) as work:
        first, second = await work.submit_many("default.group", range(2), group_key="g")
        await work.worker(concurrency=1).drain()
        assert tried == [0]
        assert [await status(work, first.id), await status(work, second.id)] == ["cancelled", "succeeded"]
        assert is_free(await work.get(first.id))


async def test_a_busy_group_does_not_hold_up_the_others(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        await work.submit_many("default.ok", range(50), group_key="busy")
        await work.submit_many("default.ok", ["x", "y"], group_key=None)
        await work.submit("default.ok", "z", group_key="other")
        holder = work.worker()
        [held] = await holder.claim(1)
        assert held.group_key == "busy"

        worker = work.worker(concurrency=10)
        assert await worker.drain() == 3
    assert [run.payload for run in seen] == ["x", "y", "z"]


async def test_a_group_spans_types(server: Server) -> None:
    succeeding(server, "default.a")
    succeeding(server, "default.b")
    async with working(server) as work:
        await work.submit("default.a", group_key="g")
        await work.submit("default.b", group_key="g")
        assert len(await work.worker().claim(5)) == 1
        assert await work.worker().claim(5) == []


async def test_a_suspended_run_lets_its_group_go_on(server: Server, clock: FakeClock) -> None:
    order: list[str] = []

    @server.work.handler("default.nap")
    async def nap(run: Run) -> None:
        await run.sleep(minutes(1))
        order.append("rested")

    @server.work.handler("default.other")
    async def other(run: Run) -> None:
        order.append("other")

    async with working(server) as work:
        await work.submit("default.nap", group_key="g")
        await work.submit("default.other", group_key="g")
        worker = work.worker()
        await worker.drain()
        clock.advance(seconds(61))
        await worker.drain()
    assert order == ["other", "rested"]


async def test_a_long_queue_behind_a_busy_group_hides_no_other_group(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        await work.submit_many("default.ok", range(400), group_key="busy")
        for key in ("a", "b", "z"):
            await work.submit_many("default.ok", [f"{key}1", f"{key}2"], group_key=key)
        for key in ("c", "d"):
            await work.submit("default.ok", key, group_key=key, delay=minutes(1))
        [held] = await work.worker().claim(1)
        assert held.group_key == "busy"

        assert await work.worker(concurrency=2).drain() == 6
    assert sorted(run.payload for run in seen) == ["a1", "a2", "b1", "b2", "z1", "z2"]


async def test_groups_and_single_runs_share_one_order(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        now = clock.now()
        for name, key, priority, late in (
            ("e", "g", 0, 1),
            ("d", None, 0, 2),
            ("c", "h", 0, 3),
            ("b", None, 5, 0),
            ("a", "g", 9, 0),
        ):
            at = now - minutes(late)
            await work.submit("default.ok", name, group_key=key, priority=priority, run_at=at)
        await work.worker(concurrency=1).drain()
    assert [run.payload for run in seen] == ["a", "b", "c", "d", "e"]


async def test_a_database_of_the_time_before_gets_the_new_indexes(database_url: str) -> None:
    before, after = Server(database_url), Server(database_url)
    succeeding(before)
    async with before.lifespan(role="client"):
        await before.raw_exec("DROP INDEX workflow_run_waiting_idx")
        await before.raw_exec("CREATE INDEX workflow_run_ready_idx ON workflow_run (type, priority)")
    seen = succeeding(after)
    async with working(after) as work:
        await after.raw_exec("DROP INDEX workflow_run_waiting_idx")
        with pytest.raises(DatabaseError):
            await after.raw_exec("DROP INDEX workflow_run_ready_idx")
        await work.submit("default.ok", 1, group_key="g")
        assert await work.worker().drain() == 1
    assert [run.payload for run in seen] == [1]
