"""The clock of the machine, and the one that tests move."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from maniflex._clock import Clock, SystemClock
from maniflex.testing import FakeClock


async def test_the_system_clock_tells_utc_and_never_runs_backwards() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()
    await clock.sleep(timedelta(0))


async def test_a_fake_clock_stands_still_until_it_is_advanced() -> None:
    clock: Clock = (fake := FakeClock())
    before = clock.now()
    assert clock.now() == before
    fake.advance(timedelta(minutes=2))
    assert clock.now() - before == timedelta(minutes=2)
    assert clock.monotonic() == 120


async def test_advancing_wakes_those_whose_time_has_come_in_order() -> None:
    clock, awake = FakeClock(), list[str]()

    async def sleeper(name: str, minutes: int) -> None:
        await clock.sleep(timedelta(minutes=minutes))
        awake.append(name)

    async with asyncio.TaskGroup() as group:
        for name, minutes in (("third", 3), ("first", 1), ("second", 2)):
            group.create_task(sleeper(name, minutes))
        await asyncio.sleep(0)
        assert clock.sleepers == 3
        clock.advance(timedelta(minutes=2))
        await asyncio.sleep(0)
        assert (awake, clock.sleepers) == (["first", "second"], 1)
        clock.advance(timedelta(minutes=1))
    assert awake == ["first", "second", "third"]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(timedelta(seconds=1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    clock.advance(timedelta(seconds=2))
    assert clock.sleepers == 0


def test_a_fake_clock_needs_a_zone_and_only_moves_forward() -> None:
    with pytest.raises(ValueError, match="aware"):
        FakeClock(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="forward"):
        FakeClock().advance(timedelta(seconds=-1))
