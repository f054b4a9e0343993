"""What time it is, waiting, and how long to wait before trying again.

The one place that asks the operating system. Everything that reads a clock is handed one, so that a test
can hand it a `FakeClock` (`maniflex.testing.clock`) and move time by hand.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
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

    def nanoseconds(self) -> int:
        """The current moment in nanoseconds since 1970, for those who need no datetime."""
        return time.time_ns()

    monotonic = staticmethod(_monotonic)

    async def sleep(self, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())


# The time as a number: a clock gives a datetime, which takes several times as long to make and to subtract.


SECOND = 1_000_000_000  # in nanoseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 24 * 60 * 60


def nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970; a moment without a time zone is refused."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    age = moment - _EPOCH
    return (age.days * _DAY + age.seconds) * SECOND + age.microseconds * 1000


def nanoseconds_by(clock: Clock) -> Callable[[], int]:
    """What gives the time of a clock in nanoseconds since 1970."""
    return clock.nanoseconds if isinstance(clock, SystemClock) else lambda: nanoseconds(clock.now())


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


# How long to wait before trying again: doubling, capped, and spread by chance. The only home of retry
# arithmetic; workers, relays and reconnecting listeners all ask here.


_MOST_DOUBLINGS = 62  # beyond this every cap is reached and a float could overflow


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause after the n-th failure: `base` doubled each time, up to `jitter` more, never above `cap`.

    >>> Backoff(base=timedelta(seconds=1), cap=timedelta(minutes=5), jitter=0)(3)
    datetime.timedelta(seconds=4)
    """

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)
    jitter: float = 0.5
    chance: Callable[[], float] = random.random

    def __call__(self, failures: int) -> timedelta:
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        # Room for the jitter is left below the cap: there most of all, many would otherwise wake at once.
        most = self.cap.total_seconds() / (1 + self.jitter)
        seconds = min(self.base.total_seconds() * 2**doublings, most)
        return timedelta(seconds=seconds * (1 + self.jitter * self.chance()))
