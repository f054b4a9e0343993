"""Durable work goes by one clock: the database server's, where there is one to ask."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from maniflex._clock import SystemClock
from maniflex.background.clock import ClockKeeper, ServerClock, shared_clock
from maniflex.db.postgres import PostgresAdapter
from maniflex.db.sqlite import SqliteAdapter
from maniflex.testing.clock import FakeClock


async def test_a_clock_that_is_wrong_is_corrected(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = PostgresAdapter(postgres_url, pool_size=1)
    await adapter.open()
    clock = ServerClock()
    clock.offset = timedelta(minutes=-5)

    with caplog.at_level(logging.WARNING):
        await ClockKeeper(clock, adapter, logging.getLogger("test")).tick()

    await adapter.close()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)
    assert not caplog.records  # the machine's own clock agrees with the server's


def test_a_clock_that_was_handed_over_stays(sqlite_url: str, postgres_url: str) -> None:
    fake = FakeClock()
    on_postgres = PostgresAdapter(postgres_url, pool_size=1)
    on_sqlite = SqliteAdapter(":memory:")

    assert shared_clock(fake, on_postgres) is fake
    assert type(shared_clock(SystemClock(), on_sqlite)) is SystemClock
    assert type(shared_clock(SystemClock(), on_postgres)) is ServerClock
