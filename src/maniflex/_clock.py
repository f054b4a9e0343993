"""What time it is, and waiting: the one place that asks the operating system.

Everything that reads a clock is handed one, so that a test can hand it a `FakeClock`
(`maniflex.testing.clock`) and move time by hand.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """The current moment, in UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never runs backwards."""

    async def sleep(self, delay: timedelta) -> None:
        """Return when `delay` has passed."""


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())
