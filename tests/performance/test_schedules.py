"""What firing costs: a thousand due schedules in one tick, each no dearer than one of a few."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule
from maniflex.testing.clock import FakeClock
from tests.kit.schedules import Bench, a_bench

FEW, MANY = 100, 1000
MOST_TIMES_DEARER = 2.0  # one schedule of many, against one of few
MOST_SECONDS = 2.0
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")


def declare(count: int, types: int) -> Callable[[Schedules], None]:
    def declared(schedules: Schedules) -> None:
        for n in range(count):
            cron, zone = ("0 * * * *", "*/30 * * * *")[n % 2], ZONES[n % len(ZONES)]
            schedules.add(f"s{n}", cron=cron, timezone=zone, run=f"report.{n % types}.v1", payload={"n": n})

    return declared


async def ticked(bench: Bench, count: int) -> float:
    started = time.perf_counter()
    assert await bench.scheduler.tick() == count
    return time.perf_counter() - started


async def best_tick(url: str, count: int, types: int, day: int = 1) -> float:
    """Seconds of the best of a few ticks in which all these schedules fire."""
    clock = FakeClock(datetime(2026, 1, day, 0, 1, tzinfo=UTC))
    async with a_bench(url, declare(count, types), clock=clock) as bench:
        before = await bench.server.db(WorkflowRun).count()
        await bench.scheduler.tick()  # plans and caches
        found = []
        for _ in range(3):
            clock.advance(timedelta(minutes=60))
            found.append(await ticked(bench, count))
        assert await bench.server.db(Schedule).count([("next_run_at", "lte", clock.now())]) == 0
        assert await bench.server.db(WorkflowRun).count() >= before + 3 * count
    return min(found)


async def test_one_of_a_thousand_due_schedules_costs_a_tick_what_one_of_a_hundred_does(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    few = await best_tick(database_url, FEW, types=3) / FEW
    many = await best_tick(database_url, MANY, types=3, day=2) / MANY

    record_property("milliseconds", f"{few * 1e3:.3f} one of {FEW}, {many * 1e3:.3f} one of {MANY}")
    assert many <= few * MOST_TIMES_DEARER


@pytest.mark.long
@pytest.mark.parametrize("types", [3, 50, 1000])
async def test_a_thousand_due_schedules_fire_in_one_tick(
    database_url: str, types: int, record_property: Callable[[str, object], None]
) -> None:
    seconds = await best_tick(database_url, MANY, types)

    record_property("seconds", f"{seconds:.3f}")
    assert seconds <= MOST_SECONDS
