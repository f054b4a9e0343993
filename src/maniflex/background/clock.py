"""One time for all workers of a database: that of the database server.

Leases are compared with the clocks of many machines, and a machine's clock may be set to any other
time at any moment. So durable work reads no wall clock: its time is what the database server said at
the last synchronisation, plus what this machine's monotonic clock has counted since. SQLite has no
server; there the machine's wall clock, which all processes of a file share, is asked in its place.

A time that does not fit to the one before is a jump. It is believed when it is still there after
`CONFIRM_AFTER`, which is longer than `EVERY`: before the first process believes it, all of them have
seen it, and while one of them doubts, no worker takes over leases and no schedule fires.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from maniflex._clock import SECOND, Clock, SystemClock
from maniflex.background.loop import Loop
from maniflex.db.port import Adapter
from maniflex.sql.statement import Sql, by_dialect

EVERY = timedelta(seconds=15)
CONFIRM_AFTER = timedelta(seconds=20)
# After a jump was last seen: until every other process has believed it too, and has renewed its leases.
HOLD_OFF = timedelta(seconds=60)
JUMP = 2.0  # seconds; what is less is a correction
ASKED = 3  # the quickest answer says it best
_ASK = Sql("SELECT clock_timestamp()")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How many seconds the server's time is ahead of the monotonic clock, give or take `error`."""

    ahead: float
    error: float
    at: float  # by the monotonic clock


class Verdict(Enum):
    """What a reading was to the clock."""

    TRUSTED = "trusted"
    DOUBTED = "doubted"
    BELIEVED = "believed"  # after it was doubted
    WITHDRAWN = "withdrawn"  # the jump that was doubted is gone


class ServerClock(SystemClock):
    """The server's time at the last synchronisation and the monotonic time since; safe on any thread."""

    __slots__ = ("_ahead", "_doubted", "_elapsed", "_hold_off", "_machine", "_steady_from", "_synchronised")

    def __init__(self, machine: Clock | None = None, hold_off: timedelta = HOLD_OFF) -> None:
        self._machine = machine or SystemClock()
        self._elapsed = self._machine.monotonic
        self._hold_off = hold_off.total_seconds()
        self._ahead = self._machine.now().timestamp() - self._machine.monotonic()
        self._synchronised = False
        self._doubted: ClockReading | None = None
        self._steady_from = float("-inf")

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._ahead + self._elapsed(), UTC)

    def nanoseconds(self) -> int:
        return int((self._ahead + self._elapsed()) * SECOND)

    def monotonic(self) -> float:
        return self._machine.monotonic()

    async def sleep(self, delay: timedelta) -> None:
        await self._machine.sleep(delay)

    @property
    def machine(self) -> Clock:
        """The clock of this machine, which may be wrong."""
        return self._machine

    @property
    def doubtful(self) -> bool:
        """Whether the server's time has jumped and it is not known yet which time is right."""
        return self._doubted is not None

    @property
    def steady(self) -> bool:
        """Whether all processes of this database have gone by one time for a while."""
        return self._machine.monotonic() >= self._steady_from

    def jump_of(self, reading: ClockReading) -> float:
        """How many seconds the server's time is from where this clock expects it."""
        return reading.ahead - self._ahead

    def take(self, reading: ClockReading) -> Verdict:
        """Go by the reading, unless it is a jump that is not confirmed yet."""
        if not self._synchronised:
            self._ahead, self._synchronised = reading.ahead, True
            return Verdict.TRUSTED
        jump, suspect = abs(self.jump_of(reading)), self._doubted
        if jump <= JUMP + reading.error:
            if jump > reading.error:  # below that, the monotonic clock knows better
                self._ahead = reading.ahead
            self._doubted = None
            return Verdict.TRUSTED if suspect is None else Verdict.WITHDRAWN
        self._steady_from = reading.at + self._hold_off
        if suspect is None or abs(reading.ahead - suspect.ahead) > JUMP + reading.error:
            self._doubted = reading
            return Verdict.DOUBTED
        if reading.at - suspect.at < CONFIRM_AFTER.total_seconds():
            return Verdict.DOUBTED
        self._ahead, self._doubted = reading.ahead, None
        return Verdict.BELIEVED


class AskedClock(ServerClock):
    """The time of a server that has no keeper: those who go by it have it asked, when that is due."""

    __slots__ = ("_ask", "_due_at")

    def __init__(self, machine: Clock, ask: Callable[[], Awaitable[datetime]]) -> None:
        super().__init__(machine)
        self._ask = ask
        self._due_at = float("-inf")  # by the monotonic clock

    async def synchronise(self) -> None:
        """Ask the server for its time, unless that was done within `EVERY`."""
        if self._machine.monotonic() >= self._due_at:
            readings = [await read_time(self._machine, self._ask) for _ in range(ASKED)]
            self._due_at = self._machine.monotonic() + EVERY.total_seconds()
            self.take(choose(readings))


async def synchronise(clock: Clock) -> None:
    """Have an asked clock ask its server; a clock that was handed over, as in tests, is right by itself."""
    if isinstance(clock, AskedClock):
        await clock.synchronise()


def may_fire(clock: Clock) -> bool:
    """Whether the time is certain enough to fire schedules that are due."""
    return not (isinstance(clock, ServerClock) and clock.doubtful)


def may_take_over(clock: Clock) -> bool:
    """Whether a lease that ran out means that its worker no longer renews it."""
    return not isinstance(clock, ServerClock) or clock.steady


class ClockKeeper(Loop):
    """Asks the database server for the time now and then."""

    name = "maniflex-clock"

    def __init__(self, clock: ServerClock, adapter: Adapter, logger: logging.Logger) -> None:
        super().__init__(clock, EVERY, logger)
        self._clock = clock
        self._adapter = adapter
        self._server_time: Callable[[], Awaitable[datetime]] = by_dialect(
            adapter.dialect, sqlite=self._time_of_machine, postgres=self._time_of_server
        )
        self._last_verdict: Verdict | None = None
        self.on_new_time: Callable[[], None] = lambda: None  # told when a jump is believed

    async def tick(self) -> bool:
        readings = [await read_time(self._clock.machine, self._server_time) for _ in range(ASKED)]
        reading = choose(readings)
        jump = self._clock.jump_of(reading)
        self._tell(self._clock.take(reading), jump)
        return False

    async def _time_of_machine(self) -> datetime:
        return self._clock.machine.now()

    async def _time_of_server(self) -> datetime:
        [[time]] = await self._adapter.write(_ASK)
        assert isinstance(time, datetime)
        return time

    def _tell(self, verdict: Verdict, jump: float) -> None:
        last_verdict, self._last_verdict = self._last_verdict, verdict
        if verdict is last_verdict:
            return
        if verdict is Verdict.DOUBTED:
            self.logger.warning(
                "the time of %s has jumped by %.1f s; until that is confirmed no schedule fires"
                " and no lease is taken over",
                self._adapter.label,
                jump,
            )
        elif verdict is Verdict.BELIEVED:
            self.logger.warning("durable work goes by the new time now, %.1f s from the old one", jump)
            self.on_new_time()
        elif verdict is Verdict.WITHDRAWN:
            self.logger.warning("the time is as expected again; durable work never went by the other one")


async def read_time(machine: Clock, ask: Callable[[], Awaitable[datetime]]) -> ClockReading:
    """What a server says of its time, beside the monotonic clock of this machine."""
    start = machine.monotonic()
    time = await ask()
    error = (machine.monotonic() - start) / 2
    return ClockReading(time.timestamp() - start - error, error, start + error)


def choose(readings: list[ClockReading]) -> ClockReading:
    """The most exact of some readings; where they contradict each other, the one in the middle."""
    by_offset = sorted(readings, key=lambda reading: reading.ahead)
    best = min(readings, key=lambda reading: reading.error)
    contradict = by_offset[-1].ahead - by_offset[0].ahead > JUMP + by_offset[-1].error + by_offset[0].error
    return by_offset[len(by_offset) // 2] if contradict else best


def shared_clock(clock: Clock, hold_off: timedelta = HOLD_OFF) -> Clock:
    """The clock durable work goes by; a clock that was handed over, as in tests, stays what it is."""
    return ServerClock(clock, hold_off) if isinstance(clock, SystemClock) else clock
