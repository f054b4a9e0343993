"""Times that a clock has written which was years ahead for a moment are brought back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.outbox.store import FIRST
from maniflex.background.repair import EVERY, LEAST_LEASE, LOOK_AGAIN, Repairer
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.model import Schedule
from maniflex.sql.statement import Sql
from maniflex.testing.clock import FakeClock
from tests.kit.internals import a_dispatcher, adapter_of, metrics_of
from tests.kit.machines import a_world
from tests.kit.outbox import abandon
from tests.kit.runs import minutes, seconds
from tests.kit.waiting import eventually

YEARS = timedelta(days=3650)
REPORT = "report.v1"


@asynccontextmanager
async def a_server(url: str, clock: FakeClock) -> AsyncIterator[tuple[Server, list[Any]]]:
    """A server with work of every kind, and what its message handler got."""
    server = Server(url, clock=clock, background=False)
    seen: list[Any] = []

    @server.work.handler(REPORT)
    async def report(run: Run) -> None: ...

    @server.work.handler("slow.v1", lease=timedelta(days=3))
    async def slow(run: Run) -> None: ...

    @server.outbox.handler("note")
    async def note(message: Message) -> None:
        seen.append(message.payload)

    server.schedules.add("hourly", cron="@hourly", run=REPORT)
    server.schedules.add("yearly", cron="@yearly", run=REPORT)
    async with server.lifespan():
        await server.schedules.declare()
        yield server, seen


def repairer(server: Server) -> Repairer:
    found = server._durable.repairer
    assert found is not None
    return found


async def test_a_jump_that_is_believed_wakes_the_repairer(sqlite_url: str) -> None:
    async with a_world(sqlite_url) as world:
        process = world.processes[0]
        await process.keeper.tick()
        waking = repairer(process.server)
        await waking.start()
        try:
            await eventually(lambda: waking.ticks == 1, "the first look")
            await world.step(-timedelta(hours=1))
            for _ in range(3):
                await process.keeper.tick()
                await world.pass_time(seconds(15))
            await eventually(lambda: waking.ticks == 2, "the look after the jump")
        finally:
            await waking.stop()


async def test_a_schedule_that_is_silent_for_years_is_due_again_at_its_next_time(
    database_url: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_server(database_url, clock) as (server, _):
        clock.advance(minutes(30))
        await server.schedules.update("hourly", cron="@hourly")
        moment = clock.now()
        clock.advance(YEARS)  # one tick
        scheduler = server.schedules.scheduler()
        await scheduler.tick()
        clock.move_to(moment)
        assert (await server.schedules.get("hourly")).next_run_at > clock.now() + YEARS  # type: ignore[operator]

        await repairer(server).tick()

        assert (await server.schedules.get("hourly")).next_run_at == moment + minutes(30)
        next_year = datetime(2027, 1, 1, tzinfo=UTC)
        assert (await server.schedules.get("yearly")).next_run_at == next_year
        assert "2 schedules had times" in caplog.text
        assert metrics_of(server).value("impossible_times_total") == 2
        clock.advance(minutes(30))
        assert await scheduler.tick() == 1


async def test_what_is_possible_stays_as_it_is(database_url: str, clock: FakeClock) -> None:
    async with a_server(database_url, clock) as (server, _):
        await server.work.submit("slow.v1")
        await server.work.submit(REPORT, run_at=clock.now() + YEARS)
        async with server.transaction():
            await server.outbox.enqueue("note", 1)
        await server.work.worker().claim(10)
        await a_dispatcher(server.outbox, 10, 1)._turn(claim=True)

        async def everything() -> list[Any]:
            return [
                await server.db(model).list(sorts=["id"]) for model in (Schedule, WorkflowRun, OutboxMessage)
            ]

        before = await everything()
        for delay in (timedelta(0), seconds(59), minutes(29), minutes(29.9)):
            clock.advance(delay)
            await repairer(server).tick()

        assert await everything() == before
        assert metrics_of(server).value("impossible_times_total") == 0


async def test_leases_that_last_for_years_end_soon(database_url: str, clock: FakeClock) -> None:
    async with a_server(database_url, clock) as (server, seen):
        await server.work.submit(REPORT)
        async with server.transaction():
            await server.outbox.enqueue_many("note", [1, 2, 3], keys=["k", "k", None])
        moment = clock.now()
        clock.advance(YEARS)
        await server.work.worker().claim(10)  # by one that dies
        await abandon(server.outbox, 10)
        clock.move_to(moment)
        clock.advance(minutes(10))
        worker = server.work.worker()
        assert await worker.run_once() == 0
        assert await server.outbox.drainer().drain() == 0

        await repairer(server).tick()
        assert await worker.run_once() == 0  # should its worker live, it can renew
        clock.advance(LEAST_LEASE + seconds(1))

        assert await worker.run_once() == 1
        assert await server.outbox.drainer().drain() == 3
        assert sorted(seen) == [1, 2, 3]
        [run] = await server.db(WorkflowRun).list([("type", "eq", REPORT)])
        assert (run.status, run.attempt) == ("succeeded", 2)


async def test_a_pause_of_years_before_the_next_attempt_is_over(database_url: str, clock: FakeClock) -> None:
    async with a_server(database_url, clock) as (server, seen):
        async with server.transaction():
            await server.outbox.enqueue("note", 1)
        await server.raw_exec(
            "UPDATE outbox_event SET retry_at = ?",
            "2036-01-01T00:00:00.000000Z" if "sqlite" in database_url else clock.now() + YEARS,
        )
        assert await server.outbox.drainer().drain() == 0

        await repairer(server).tick()

        assert await server.outbox.drainer().drain() == 1
        assert seen == [1]


async def test_nothing_is_brought_back_while_the_time_is_in_doubt(database_url: str) -> None:
    async with a_world(database_url) as world:
        first, *_ = world.processes
        found = repairer(first.server)
        await world.step(-YEARS)  # by which every schedule and lease seems to be years ahead
        await first.keeper.tick()
        before = await first.server.schedules.get("report")

        await found.tick()

        assert await first.server.schedules.get("report") == before
        assert found.pause() == LOOK_AGAIN
        await world.step(YEARS)
        await world.pass_time(minutes(3))
        await first.keeper.tick()
        await found.tick()
        assert found.pause() > EVERY / 2
        assert first.metrics.value("impossible_times_total") == 0


@pytest.mark.unpartitioned(reason="it counts the pages that one table takes")
async def test_the_cost_for_messages_does_not_grow_with_those_that_wait(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_server(database_url, clock) as (server, _):
        kinds = [f"kind-{n}" for n in range(20)]
        for kind in kinds:
            await server.outbox.enqueue_many(kind, [0] * 1000, outside_transaction=True)
        if "postgres" in database_url:
            await server.raw_exec("ANALYZE outbox_event")
        adapter: Any = adapter_of(server)
        asked: list[Sql] = []
        for name in ("fetch", "write"):
            monkeypatch.setattr(type(adapter), name, noting(getattr(type(adapter), name), asked))
        await repairer(server).tick()
        asked = [sql for sql in asked if "outbox_event" in sql.text]
        monkeypatch.undo()

        assert len(asked) == 3
        if "postgres" in database_url:
            text = "EXPLAIN (ANALYZE, FORMAT JSON) "
            plans = [(await adapter.write(Sql(text + sql.text, sql.params)))[0][0] for sql in asked]
            rows = [rows_read(json.loads(plan)[0]["Plan"]) for plan in plans]
            assert rows[0] <= 25
            assert rows[1] <= 20 * (FIRST + 1)
            assert rows[2] == 0
        else:
            for sql in asked:
                steps = await adapter.fetch(Sql(f"EXPLAIN QUERY PLAN {sql.text}", sql.params))
                plan = [str(step[3]) for step in steps]
                assert not [one for one in plan if one.startswith("SCAN") and "outbox_event" in one], plan
                assert any("outbox_event_kind_idx (kind" in one for one in plan), plan


def noting(ask: Any, asked: list[Sql]) -> Any:
    async def noted(self: Any, sql: Sql, *rest: Any, **options: Any) -> Any:
        asked.append(sql)
        return await ask(self, sql, *rest, **options)

    return noted


def rows_read(plan: dict[str, Any]) -> float:
    """How many rows of messages a plan of PostgreSQL looked at, also those it left out."""
    own = 0.0
    if plan.get("Relation Name") == "outbox_event" or "Index Name" in plan:
        own = plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    return own + sum(rows_read(part) for part in plan.get("Plans", ()))


async def test_messages_of_many_kinds_are_repaired_some_kinds_at_a_time(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maniflex.background.repair.KINDS", 2)
    monkeypatch.setattr("maniflex.background.outbox.store.AT_ONCE", 3)
    async with a_server(database_url, clock) as (server, _):
        for kind in "abcde":
            await server.outbox.enqueue_many(kind, [0] * 4, outside_transaction=True)
        far = "'2036-01-01T00:00:00.000000Z'"
        await server.raw_exec(f"UPDATE outbox_event SET retry_at = {far}")
        for left in (12, 4, 0, 0):
            await repairer(server).tick()
            [row] = await server.raw_query(f"SELECT count(*) AS n FROM outbox_event WHERE retry_at = {far}")
            assert row["n"] == left
