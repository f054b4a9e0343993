"""Claims in parts, again, late or in vain: no run is forgotten, and none is mistaken for another."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from maniflex import Context, Run, Server
from maniflex.background.runs.outcomes import Failed, Paused, settle
from maniflex.background.runs.rows import FOLLOWED_AT_MOST, ClaimCursor
from maniflex.errors import Unavailable
from maniflex.sql.statement import Sql
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.internals import rescue_expired
from tests.kit.runs import no_pause, seconds, status, succeeding, working
from tests.kit.waiting import eventually

# -- going on where the last claim left off


async def claimed(worker: Any, limit: int, trail: ClaimCursor) -> list[Any]:
    return [run.payload for run in await worker.claim(limit, trail)]


async def test_what_is_more_urgent_of_the_same_type_comes_next(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        worker, trail = work.worker(concurrency=200), ClaimCursor()
        await work.submit_many("default.ok", ["low"] * 100)
        assert await claimed(worker, 10, trail) == ['"low"'] * 10
        await work.submit("default.ok", "urgent", priority=9)
        await work.submit("default.ok", "lower", priority=-9)

        assert await claimed(worker, 10, trail) == ['"urgent"', *['"low"'] * 9]


async def test_what_is_more_urgent_of_another_type_waits_a_few_claims_at_most(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    async with working(server) as work:
        worker, trail = work.worker(concurrency=1000), ClaimCursor()
        await work.submit_many("default.ok", ["low"] * 1000)
        assert await claimed(worker, 10, trail) == ['"low"'] * 10
        await work.submit("default.also", "urgent", priority=9)
        clock.advance(timedelta(milliseconds=1))

        seen = [await claimed(worker, 10, trail) for _ in range(FOLLOWED_AT_MOST + 1)]

        assert sum(claim.count('"urgent"') for claim in seen) == 1
        await work.submit("default.also", "urgent", priority=9)
        clock.advance(timedelta(milliseconds=200))
        assert '"urgent"' in await claimed(worker, 10, trail)


async def test_one_worker_by_hand_takes_the_most_urgent_first(server: Server) -> None:
    succeeding(server)
    urgent = succeeding(server, "default.also")
    async with working(server) as work:
        worker = work.worker(concurrency=10)
        await work.submit_many("default.ok", ["low"] * 30)
        await worker.run_once()
        await work.submit("default.also", priority=9)
        await worker.run_once()

        assert len(urgent) == 1


async def test_what_comes_in_ahead_of_the_last_claim_is_not_left_behind(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    async with working(server) as work:
        worker, trail = work.worker(concurrency=200), ClaimCursor()
        await work.submit_many("default.ok", ["now"] * 100)
        await claimed(worker, 10, trail)
        await work.submit("default.ok", "earlier", run_at=clock.now() - seconds(60))

        rest = [payload for _ in range(10) for payload in await claimed(worker, 10, trail)]

        assert sorted(rest) == ['"earlier"', *['"now"'] * 90]


async def test_a_conflict_in_the_second_part_of_a_claim_does_not_forget_the_first(
    postgres_url: str, clock: FakeClock
) -> None:
    server = Server(postgres_url, clock=clock, pool_size=4)
    succeeding(server)
    async with working(server) as work:
        worker, trail = work.worker(concurrency=40), ClaimCursor()
        await work.submit_many("default.ok", range(17))
        first = await worker.claim(10, trail)
        await work.submit("default.zz", group_key="g")
        other = await work.submit("other.ok", group_key="g")
        connection = await asyncpg.connect(postgres_url)
        lease = (
            "UPDATE workflow_run SET status = 'leased', lease = 'x', lease_until = '2999-01-01' WHERE id = $1"
        )
        async with connection.transaction():
            await connection.execute(lease, other.id)
            second = asyncio.create_task(worker.claim(10, trail))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = $1"
            await eventually(lambda: connection.fetch(waiting, "transactionid"), "the claim to wait")
        await connection.close()

        known = {run.id for run in [*first, *await second]}
        held = await server.raw_query("SELECT id FROM workflow_run WHERE status = 'leased' AND lease <> 'x'")
        assert {row["id"] for row in held} == known
        assert len(known) == 17


# -- answers that are lost


async def test_what_was_found_again_is_not_lost_with_the_next_failure(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        worker = work.worker(concurrency=4)
        made = await work.submit_many("default.ok", range(2))
        queue: Any = worker.claimer.store
        claim = queue.claim

        async def answered_late(*args: Any) -> Any:
            await claim(*args)
            raise Unavailable("lost")

        async def away(*args: Any) -> Any:
            raise Unavailable("away")

        queue.claim = answered_late
        with pytest.raises(Unavailable):
            await worker.claim(4)
        queue.claim = away
        found = await worker.claim(4)

        assert {run.id for run in found} == {run.id for run in made}
        await asyncio.wait([attempt.task for attempt in worker.begin(found)])
        with pytest.raises(Unavailable):  # those it knows by now are not begun again
            await worker.claim(4)
        await worker.settler.flush_all()
        assert [await status(work, run.id) for run in made] == ["succeeded"] * 2


async def test_a_run_that_begins_late_and_cannot_ask_is_handed_back(server: Server, clock: FakeClock) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", max_attempts=1)
        worker = work.worker()
        [late] = await worker.claim(1)
        late.until = clock.now()
        owns = work.engine.store.owns

        async def away(held: Any) -> bool:
            raise Unavailable("away")

        work.engine.store.owns = away  # type: ignore[method-assign]
        await worker.begin([late])[0].task
        work.engine.store.owns = owns  # type: ignore[method-assign]
        await worker.settler.flush_all()

        assert (await status(work, made.id), seen) == ("pending", [])
        assert await work.worker().drain() == 1


# -- one run twice in one worker


async def twice(work: Any, worker: Any, clock: FakeClock) -> tuple[Any, Any]:
    """A run the worker lost and claimed again."""
    [old] = await worker.claim(1)
    clock.advance(seconds(60))
    await rescue_expired(worker)
    [new] = await worker.claim(1)
    assert old.id == new.id
    assert old.held != new.held
    return old, new


async def test_the_outcome_of_a_lost_attempt_is_not_taken_for_that_of_the_next(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)

    @server.work.handler("default.letter")
    async def letter(run: Run) -> None: ...

    @server.work.handler("default.x", dead_letter="default.letter")
    async def x(run: Run) -> None: ...

    async with working(server) as work:
        made = await work.submit("default.x", max_attempts=5)
        worker = work.worker(lease=seconds(10))
        old, new = await twice(work, worker, clock)
        stale = settle(old, Failed("fatal", "stale", final=True), no_pause, clock.now())
        fresh = settle(new, Paused(clock.now() + seconds(3600), None), no_pause, clock.now())
        assert stale is not None
        assert fresh is not None
        worker.settler.change(old, stale)
        worker.settler.change(new, fresh)
        await worker.settler.flush_all()

        assert await status(work, made.id) == "pending"
        assert await work.list(type="default.letter") == []
        assert worker.engine.metrics.value("runs_failed_total") == 0


async def test_a_success_counts_once_for_a_run_that_was_worked_on_twice(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", max_attempts=5)
        worker = work.worker(lease=seconds(10))
        old, new = await twice(work, worker, clock)
        worker.settler.succeed(old, '"old"')
        worker.settler.succeed(new, '"new"')
        await worker.settler.flush_all()

        assert (await work.get(made.id)).result == "new"
        assert worker.engine.metrics.value("runs_succeeded_total") == 1


async def test_of_two_leases_on_one_run_the_older_is_the_lost_one(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        await work.submit("default.ok", max_attempts=5)
        worker = work.worker(lease=seconds(10))
        old, new = await twice(work, worker, clock)
        lost: list[str] = []
        worker.leases.hold(old.held, lambda: lost.append("old"))
        worker.leases.hold(new.held, lambda: lost.append("new"))
        await worker.leases.beat(work.engine.store.adapter)

        assert lost == ["old"]


# -- room


async def test_room_that_opens_during_a_claim_is_used_at_once(database_url: str) -> None:
    real = Server(database_url, pool_size=6)
    gates = [asyncio.Event() for _ in range(4)]
    begun: list[Any] = []
    over = asyncio.Event()

    @real.work.handler("default.first")
    async def first(run: Run) -> None:
        await gates[run.payload].wait()

    @real.work.handler("default.long")
    async def long(run: Run) -> None:
        begun.append(run.payload)
        await over.wait()

    async with working(real) as work:
        worker = work.worker(concurrency=4, poll_interval=seconds(60))
        await worker.start()
        await work.submit_many("default.first", range(4), priority=5)
        await eventually(lambda: worker.busy == 4, "four that run")
        await work.submit_many("default.long", range(10))
        queue: Any = worker.claimer.store
        claim = queue.claim

        async def slow(*args: Any) -> Any:
            runs = await claim(*args)
            gates[2].set()
            gates[3].set()
            await eventually(lambda: worker.busy == 0, "the end of the first four")
            queue.claim = claim
            return runs

        queue.claim = slow
        gates[0].set()
        gates[1].set()
        await eventually(lambda: len(begun) == 4, "all places to be taken")
        over.set()
        await worker.stop()


# -- what `submit_many` gives


async def test_submitted_runs_are_like_a_list(server: Server) -> None:
    async def forward(run: Run) -> Any:
        return await server.work.submit_many("default.ok", [1, 2])

    server.work.handler("default.forward")(forward)
    succeeding(server)
    async with working(server) as work:
        none = await work.submit_many("default.ok", [])
        made = await work.submit_many("default.ok", ["a", "b", "c"])
        assert none == []
        assert made == list(made)
        assert made[-1] is made[2]
        assert [run.payload for run in made[:2]] == ["a", "b"]
        sent = await work.submit("default.forward")
        await work.worker().drain()

        forwarded: Any = (await work.get(sent.id)).result
        assert [run["payload"] for run in forwarded] == [1, 2]


async def test_an_action_may_answer_with_what_it_submitted(database_url: str) -> None:
    server = Server()
    succeeding(server)

    @server.action("POST", "/go")
    async def go(ctx: Context) -> Any:
        return {"runs": await server.work.submit_many("default.ok", [1, 2])}

    async with client(server, database=database_url) as http:
        answer = await http.post("/api/go", json={})

    assert [run["payload"] for run in answer.json()["data"]["runs"]] == [1, 2]


async def test_a_drain_with_a_backlog_claims_along_its_indexes(postgres_url: str) -> None:
    """On connections whose plans do not change with the weather, as a worker that stays does."""
    server = Server(postgres_url)
    steady: list[bool] = []

    @server.work.handler("default.look")
    async def look(run: Run) -> None:
        [[setting]] = await worker.claimer.store.adapter.fetch(Sql("SHOW enable_seqscan"))
        steady.append(setting == "off")

    async with working(server) as work:
        worker = work.worker(concurrency=2)
        await work.submit_many("default.look", range(6))
        assert await worker.drain() == 6
        assert worker.claimer.store is work.engine.store
    assert steady == [False] * 2 + [True] * 4
