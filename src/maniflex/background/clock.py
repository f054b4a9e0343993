"""One time for all workers of a database: that of the database server.

Leases are compared with the clocks of many machines. Where there is a server to ask, each process
learns how far its own clock is off and corrects it; on SQLite all processes share one machine.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from maniflex._clock import Clock, SystemClock
from maniflex.background.loop import Loop
from maniflex.db.port import Adapter
from maniflex.sql.statement import Dialect, Sql

EVERY = timedelta(minutes=1)
ASKED = 3  # the quickest answer says it best
NOTEWORTHY = timedelta(seconds=2)
_ASK = Sql("SELECT clock_timestamp()")


class ServerClock(SystemClock):
    """The machine's clock, corrected by `offset`."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset


class ClockKeeper(Loop):
    """Asks the database server for the time now and then."""

    name = "maniflex-clock"

    def __init__(self, clock: ServerClock, adapter: Adapter, logger: logging.Logger) -> None:
        super().__init__(clock, EVERY, logger)
        self._clock = clock
        self._adapter = adapter

    async def tick(self) -> bool:
        best = timedelta.max
        for _ in range(ASKED):
            asked = datetime.now(UTC)
            row: Any = await self._adapter.write(_ASK)
            answered = datetime.now(UTC)
            if answered - asked < best:
                best = answered - asked
                offset = row[0][0] - (asked + best / 2)
        if abs(offset) > NOTEWORTHY and abs(offset - self._clock.offset) > NOTEWORTHY:
            self.logger.warning(
                "this machine's clock is %.1f s away from the database's; durable work goes by the latter",
                offset.total_seconds(),
            )
        # Below what a round trip can tell, the machine's own clock is the steadier one.
        self._clock.offset = offset if abs(offset) > best else timedelta(0)
        return False


def shared_clock(clock: Clock, adapter: Adapter) -> Clock:
    """The clock durable work goes by; a clock that was handed over, as in tests, stays what it is."""
    plain = type(clock) is SystemClock and adapter.dialect is Dialect.POSTGRES
    return ServerClock() if plain else clock
