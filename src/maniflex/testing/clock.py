"""A clock that moves only when a test says so.

>>> clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
>>> clock.advance(timedelta(minutes=2))
>>> clock.now().minute
2
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A `Clock` for tests; `advance` wakes the sleepers whose time has come, earliest first."""

    def __init__(self, now: datetime = _START) -> None:
        if now.tzinfo is None:
            raise ValueError("a clock needs an aware datetime")
        self._start = self._now = now.astimezone(UTC)
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    async def sleep(self, delay: timedelta) -> None:
        if delay <= timedelta(0):
            await asyncio.sleep(0)
            return
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._now + delay, next(self._order), awake))
        await awake

    @property
    def sleepers(self) -> int:
        """How many are waiting for time to pass."""
        return sum(not awake.done() for _, _, awake in self._sleepers)

    def advance(self, delay: timedelta) -> None:
        """Move forward by `delay`."""
        if delay < timedelta(0):
            raise ValueError("time only moves forward")
        self.move_to(self._now + delay)

    def move_to(self, moment: datetime) -> None:
        """Set the time, forwards or backwards, as a corrected system clock would."""
        self._now = moment.astimezone(UTC)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, awake = heappop(self._sleepers)
            if not awake.done():
                awake.set_result(None)
