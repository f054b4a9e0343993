"""What a sweep costs: per row, and when there is nothing to do however much has been done before."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from maniflex import Server
from maniflex.sql import scheduled_fields
from maniflex.sql.scheduled_indexes import ScheduleIndex, schedule_indexes
from maniflex.sql.statement import Sql
from tests.kit.scheduled_fields import FUTURE, PAST, START, Post, a_newsroom, fill, runner_of
from tests.kit.statements import rows_examined, sqlite_plan

ROWS_PER_SECOND = 20_000
TIMES_A_BARE_UPDATE = 4
ACTIONS = ("publish_at", "expires_at", "purge_at")


async def settled(server: Server) -> None:
    """What the database would do by itself sooner or later."""
    await server.raw_exec("ANALYZE posts")


async def again_due(server: Server, rows: int) -> None:
    await server.raw_exec("UPDATE posts SET status = 'draft' WHERE id < ?", f"{rows:012}")


async def swept(server: Server) -> float:
    runner = runner_of(server)
    before = time.perf_counter()
    await runner.sweep()
    return time.perf_counter() - before


async def bare(server: Server, rows: int, batch: int) -> float:
    """The same rows by as many statements that know their keys and check nothing."""
    before = time.perf_counter()
    for first in range(0, rows, batch):
        bounds = (f"{first:012}", f"{first + batch:012}")
        await server.raw_exec("UPDATE posts SET status = 'published' WHERE id >= ? AND id < ?", *bounds)
    return time.perf_counter() - before


async def test_a_sweep_costs_few_times_what_bare_updates_do(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with a_newsroom(database_url) as server:
        await fill(server, 0, 5_000, publish_at=PAST)
        await fill(server, 5_000, 45_000, publish_at=FUTURE)
        await settled(server)
        ours, theirs = [], []
        for _ in range(5):
            ours.append(await swept(server))
            await again_due(server, 5_000)
            theirs.append(await bare(server, 5_000, 500))
            await again_due(server, 5_000)

        record_property("rows_per_second", f"{5_000 / min(ours):.0f}, bare {5_000 / min(theirs):.0f}")
        assert min(ours) <= min(theirs) * TIMES_A_BARE_UPDATE


@pytest.mark.long
@pytest.mark.parametrize("action", ACTIONS)
async def test_a_hundred_thousand_due_rows_of_a_million(
    database_url: str, action: str, record_property: Callable[[str, object], None]
) -> None:
    async with a_newsroom(database_url) as server:
        await fill(server, 100_000, 900_000, **{action: FUTURE})
        speeds = []
        for _ in range(3):
            await server.raw_exec("DELETE FROM posts WHERE id < ?", f"{100_000:012}")
            await fill(server, 0, 100_000, **{action: PAST})
            await settled(server)
            speeds.append(100_000 / await swept(server))
            if speeds[-1] >= ROWS_PER_SECOND:
                break

        record_property("rows_per_second", f"{max(speeds):.0f}")
        assert max(speeds) >= ROWS_PER_SECOND


# -- nothing to do


def lane_of(server: Server, time: str, rival: str | None = None) -> ScheduleIndex:
    meta = server._seal().runtime.store(Post).meta
    found = [
        schedule_index for schedule_index in schedule_indexes(meta) if schedule_index.schedule.time == time
    ]
    return next(
        schedule_index
        for schedule_index in found
        if rival == (schedule_index.rival and schedule_index.rival.schedule.time)
    )


def statement(server: Server, schedule_index: ScheduleIndex) -> Sql:
    return scheduled_fields.take(server._seal().runtime.store(Post).sql, schedule_index, START, None, 500)


LANES = [("publish_at", None), ("archive_at", None), ("archive_at", "publish_at"), ("expires_at", None)]


async def history(server: Server, rows: int) -> None:
    """Posts that have been through everything, and some that have it all before them."""
    past = {"publish_at": PAST - timedelta(days=1), "archive_at": PAST}
    later = {"publish_at": FUTURE, "archive_at": FUTURE + timedelta(days=1), "expires_at": FUTURE}
    await fill(server, 0, rows // 2, status="'archived'", **past)
    await fill(server, rows // 2, rows // 4, status="'archived'", expires_at=PAST, deleted_at=PAST, **past)
    await fill(server, rows * 3 // 4, rows // 4, **later)
    await settled(server)


@pytest.mark.parametrize(("time", "rival"), LANES)
async def test_what_has_been_served_is_never_looked_at_again(
    database_url: str, time: str, rival: str | None
) -> None:
    async with a_newsroom(database_url) as server:
        await history(server, 20_000)
        asked = statement(server, lane_of(server, time, rival))
        async with server.transaction() as tx:
            assert await tx.fetch(asked) == []
        if database_url.startswith("postgres"):
            assert await rows_examined(database_url, *asked) == 0
        else:
            plan = sqlite_plan(database_url, *asked)
            assert f"SEARCH posts USING INDEX due_posts_{rival or time}" in plan.replace("COVERING ", "")
            assert "TEMP B-TREE" not in plan


@pytest.mark.long
async def test_an_idle_sweep_after_a_million_served_rows_costs_what_it_does_on_an_empty_table(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with a_newsroom(database_url) as server:
        costs: list[float] = []
        for rows in (0, 1_000_000):
            if rows:
                await history(server, rows)
            costs.append(min([await swept(server) for _ in range(200)]))

        record_property("milliseconds", f"{costs[0] * 1e3:.2f} empty, {costs[1] * 1e3:.2f} after a million")
        assert costs[1] <= costs[0] * 1.5
