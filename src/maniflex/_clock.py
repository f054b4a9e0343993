"""What time it is, and waiting: the one place that asks the operating system.

Everything that reads a clock is handed one, so that a test can hand it a `FakeClock`
(`maniflex.testing.clock`) and move time by hand.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol

from maniflex.errors import ConfigError


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """The current moment, in UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment, those asleep included; never runs backwards."""

    async def sleep(self, delay: timedelta) -> None:
        """Return when `delay` has passed."""


if sys.platform == "linux":
    # CLOCK_MONOTONIC stops while the machine is suspended; its leases run out meanwhile all the same.
    _monotonic: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    _monotonic = time.monotonic


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def timestamp(self) -> float:
        """The current moment in seconds since 1970, for those who need no datetime."""
        return time.time()

    monotonic = staticmethod(_monotonic)

    async def sleep(self, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())


def check_clock(clock: Any) -> Clock:
    """The clock as it is, or `ConfigError`."""
    parts = ("now", "monotonic", "sleep")
    if isinstance(clock, type) or not all(callable(getattr(clock, part, None)) for part in parts):
        raise ConfigError(f"clock: {clock!r} is no clock, which has now(), monotonic() and sleep(delay)")
    now = clock.now()
    if not isinstance(now, datetime) or now.tzinfo is None:
        raise ConfigError(f"clock: its now() is a datetime with a time zone, not {now!r}")
    checked_clock: Clock = clock
    return checked_clock
