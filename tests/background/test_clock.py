"""Durable work goes by one clock: the database server's, where there is one to ask."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from maniflex._clock import SystemClock
from maniflex.background.clock import (
    CONFIRM_AFTER,
    EVERY,
    ClockKeeper,
    ClockReading,
    ServerClock,
    Verdict,
    choose,
    may_fire,
    may_take_over,
    shared_clock,
)
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.testing.clock import FakeClock
from tests.kit.machines import Machine

HOUR = timedelta(hours=1)


async def test_a_clock_that_is_wrong_at_the_start_is_corrected(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = PostgresAdapter(postgres_url, pool_size=1)
    await adapter.open()
    machine = Machine()
    machine.wall = -HOUR
    clock = ServerClock(machine)
    assert abs(clock.now() - machine.now()) < timedelta(seconds=1)

    with caplog.at_level(logging.WARNING):
        await ClockKeeper(clock, adapter, logging.getLogger("test")).tick()

    await adapter.close()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert not caplog.records


def test_a_clock_that_was_handed_over_stays() -> None:
    fake = FakeClock()

    assert shared_clock(fake) is fake
    assert type(shared_clock(SystemClock())) is ServerClock
    assert may_fire(fake)
    assert may_take_over(fake)


async def test_on_sqlite_the_wall_clock_of_the_machine_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = ServerClock(machine)
    keeper = ClockKeeper(clock, SqliteAdapter(":memory:"), logging.getLogger("test"))
    await keeper.tick()
    began = clock.now()

    machine.wall += HOUR
    for _ in range(4):
        await keeper.tick()
        machine.wall += EVERY
        machine.passed += EVERY

    assert abs(clock.now() - began - HOUR - EVERY * 4) < timedelta(seconds=2)
    texts = [record.message for record in caplog.records]
    assert len(texts) == 2
    assert "jumped by 3600" in texts[0]
    assert "goes by the new time" in texts[1]


def synchronised(ahead: float = 0.0) -> tuple[ServerClock, Machine]:
    machine = Machine()
    clock = ServerClock(machine)
    clock.take(ClockReading(ahead, 0.001, machine.monotonic()))
    return clock, machine


def take(clock: ServerClock, machine: Machine, ahead: float, error: float = 0.001) -> Verdict:
    return clock.take(ClockReading(ahead, error, machine.monotonic()))


def test_small_corrections_are_made_at_once_and_what_a_round_trip_cannot_tell_is_none() -> None:
    clock, machine = synchronised()

    assert take(clock, machine, 1.5) is Verdict.TRUSTED
    assert clock.jump_of(ClockReading(1.5, 0, 0)) == 0
    assert take(clock, machine, 3.0, error=2.0) is Verdict.TRUSTED
    assert clock.jump_of(ClockReading(1.5, 0, 0)) == 0


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 3e8, -2.5])
def test_a_jump_is_believed_when_it_is_still_there_after_a_while(jump: float) -> None:
    clock, machine = synchronised()

    assert take(clock, machine, jump) is Verdict.DOUBTED
    assert not may_fire(clock)
    machine.passed += CONFIRM_AFTER - timedelta(seconds=1)
    assert take(clock, machine, jump) is Verdict.DOUBTED
    machine.passed += timedelta(seconds=2)
    assert take(clock, machine, jump) is Verdict.BELIEVED

    assert may_fire(clock)
    assert not may_take_over(clock)
    assert clock.jump_of(ClockReading(jump, 0, 0)) == 0


def test_a_clock_that_keeps_jumping_is_never_believed() -> None:
    clock, machine = synchronised()

    for n in range(1, 20):
        machine.passed += EVERY
        assert take(clock, machine, n * 60.0) is Verdict.DOUBTED
    machine.passed += EVERY

    assert take(clock, machine, 0.1) is Verdict.WITHDRAWN
    assert not clock.doubtful


def test_of_readings_that_contradict_each_other_the_middle_one_counts() -> None:
    right, exact, mad = ClockReading(10.0, 0.2, 1), ClockReading(10.1, 0.1, 2), ClockReading(9e9, 0.01, 3)

    assert choose([right, exact, ClockReading(10.05, 0.3, 3)]) is exact
    assert choose([mad, right, exact]) is exact
    assert choose([right, mad, exact]) is exact


def test_before_anybody_believes_a_jump_everybody_has_seen_it() -> None:
    assert EVERY * 1.1 < CONFIRM_AFTER  # 1.1: the pause of a loop varies by a tenth
