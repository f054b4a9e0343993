"""The rounds of a worker: one claims what is due, the other takes back what the dead have left."""

from __future__ import annotations

from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from maniflex.background.clock import may_take_over
from maniflex.background.loop import Loop
from maniflex.background.runs.rows import Reaped
from maniflex.background.runs.trail import Trail
from maniflex.db.current import transaction

if TYPE_CHECKING:
    from maniflex.background.runs.worker import Worker

CHANCE = timedelta(milliseconds=500)  # to renew a lease that ran out, for those who only were held up


class Feeder(Loop):
    """Claims whenever there is room; a full claim is followed by another at once."""

    name = "maniflex-worker"

    def __init__(self, worker: Worker, interval: timedelta) -> None:
        super().__init__(worker.clock, interval, worker.logger)
        self._worker = worker
        self._short = 0
        self._trail = Trail()

    def room(self) -> None:
        """A run ended; with work waiting, its place is taken at once."""
        if not self._short:
            self.wake()

    def wake(self) -> None:
        self._short = 0
        super().wake()

    async def tick(self) -> bool:
        worker = self._worker
        room = worker.free
        if room <= 0:
            return False
        short, self._short = self._short, self._short + 1
        claimed = await worker.claim(min(room, worker.portion), self._trail)
        if claimed:
            worker.begin(claimed)
            self._short = 0
            return worker.free > 0  # else there is no room until one ends, and that wakes us
        return short == 0

    def failed(self, error: BaseException) -> None:
        self._worker.metrics.add("runs_poll_errors_total")


class Rescuer(Loop):
    """Takes back runs whose workers died, whoever they were.

    A lease that ran out does not prove a death: the database may have been away or locked, or the
    machine may have stood still. So it looks twice, with time between for the living to renew.
    """

    name = "maniflex-rescuer"

    def __init__(self, worker: Worker, interval: timedelta) -> None:
        super().__init__(worker.clock, interval, worker.logger)
        self._worker = worker
        self._chance = min(CHANCE, worker.beat)
        self._not_before: datetime | None = None
        self._suspected: datetime | None = None

    async def start(self) -> None:
        self._hold_off()  # perhaps it is an outage that we are started after
        await super().start()

    def pause(self) -> timedelta:
        pause = super().pause()
        return pause if self._suspected is None else min(pause, self._chance)

    async def tick(self) -> bool:
        if not may_take_over(self.clock):
            self._hold_off()
            return False
        now = self.clock.now()
        if not await self._worker.queue.has_expired(now):
            self._suspected = None
            return False
        if self._not_before is not None and now < self._not_before:
            return False
        if not await self._had_a_chance(now):
            return False
        began = monotonic()
        async with transaction(self._worker.store.adapter):
            if self._was_held_up(began):
                return False
            reaped = await self._rescued()
        return self._told(reaped)

    async def _had_a_chance(self, now: datetime) -> bool:
        """Whether its worker could have renewed since we first saw what ran out."""
        since = self._suspected
        late = self._chance + self.interval + self._worker.beat
        if since is not None and now - since <= late:
            return now - since >= self._chance
        began = monotonic()
        async with transaction(self._worker.store.adapter):
            pass  # as soon as we can write, so can they
        if not self._was_held_up(began):
            self._suspected = self.clock.now()
        return False

    def _was_held_up(self, began: float) -> bool:
        """Whether it took long to be let in; then the others may have been, and may need longer."""
        held_up = monotonic() - began > self._chance.total_seconds()
        if held_up:
            self._hold_off()
        return held_up

    def _hold_off(self) -> None:
        """Whoever lives renews its leases first."""
        self._not_before = self.clock.now() + self._worker.beat
        self._suspected = None

    async def at_once(self) -> bool:
        """Take back what ran out without a second look; whether there was anything."""
        if not may_take_over(self.clock) or not await self._worker.queue.has_expired(self.clock.now()):
            return False
        async with transaction(self._worker.store.adapter):
            reaped = await self._rescued()
        return self._told(reaped)

    async def _rescued(self) -> list[Reaped]:
        await self._worker.renew_own()  # we do live
        return await self._worker.work.reap(self.clock.now())

    def _told(self, reaped: list[Reaped]) -> bool:
        for run in reaped:
            self._worker.metrics.add("runs_reclaimed_total", type=run.type)
            self.logger.warning(
                "run %s (%s) was abandoned by its worker; it is %s", run.id, run.type, run.status
            )
        if reaped:
            self._worker.wake()
        return bool(reaped)

    def failed(self, error: BaseException) -> None:
        self._worker.metrics.add("runs_poll_errors_total")
        self._hold_off()  # the database was away for the others too
