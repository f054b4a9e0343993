"""What firing costs: a thousand due schedules in one tick, however many rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.model import Schedule
from maniflex.background.schedules.schedules import Schedules
from maniflex.testing.clock import FakeClock
from tests.background.scheduling import Bench, a_bench

MOST_SECONDS = 2.0
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")


def declare(types: int) -> Callable[[Schedules], None]:
    def thousand(schedules: Schedules) -> None:
        for n in range(1000):
            cron, zone = ("0 * * * *", "*/30 * * * *")[n % 2], ZONES[n % len(ZONES)]
            schedules.add(f"s{n}", cron=cron, timezone=zone, run=f"report.{n % types}.v1", payload={"n": n})

    return thousand


async def ticked(bench: Bench) -> float:
    started = time.perf_counter()
    assert await bench.scheduler.tick() == 1000
    return time.perf_counter() - started


async def test_a_thousand_due_schedules_fire_in_one_tick(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    clock = FakeClock(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    async with a_bench(database_url, declare(types=3), clock=clock) as bench:
        await bench.server.raw_exec("UPDATE schedules SET cron = '0 * * * *', timezone = 'UTC'")
        found = []
        for hour in range(1, 4):
            clock.move_to(datetime(2026, 1, 1, hour, tzinfo=UTC))
            await bench.server.raw_exec("UPDATE schedules SET next_run_at = ?", clock.now())
            found.append(await ticked(bench))
        assert await bench.server.db(WorkflowRun).count() == 3000

    record_property("seconds", f"{min(found):.3f} best, {max(found):.3f} worst")
    assert min(found) <= MOST_SECONDS


async def test_it_is_as_quick_with_fifty_types_of_run_and_four_zones(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    clock = FakeClock(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    async with a_bench(database_url, declare(types=50), clock=clock) as bench:
        found = []
        for _ in range(3):
            clock.advance(timedelta(minutes=60))
            found.append(await ticked(bench))
        assert await bench.server.db(Schedule).count([("next_run_at", "lte", clock.now())]) == 0

    record_property("seconds", f"{min(found):.3f} best, {max(found):.3f} worst")
    assert min(found) <= MOST_SECONDS
