"""Takes back the runs of workers that died."""

from __future__ import annotations

from datetime import datetime, timedelta
from time import monotonic

from maniflex.background.clock import may_take_over
from maniflex.background.loop import Loop
from maniflex.background.partitions.layout import RUNS
from maniflex.background.partitions.retention import PartitionRetention
from maniflex.background.runs.claimer import Claimer, RunLeases
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import Reaped
from maniflex.db.current import transaction

RENEW_GRACE = timedelta(milliseconds=500)  # to renew a lease that ran out, for those who only were held up


class Rescuer(Loop):
    """Takes back runs whose worker died, in any process.

    A lease that ran out does not prove a death: the database may have been away or locked, or the
    machine may have stood still. So it looks twice, with time between for the living to renew.
    """

    name = "maniflex-rescuer"

    def __init__(self, engine: RunEngine, leases: RunLeases, claimer: Claimer, interval: timedelta) -> None:
        super().__init__(engine.clock, interval, engine.logger)
        self._engine = engine
        self._leases = leases
        self._claimer = claimer
        self._chance = min(RENEW_GRACE, leases.beat_interval)
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
        if not await self._claimer.store.has_expired(now):
            self._suspected = None
            return False
        if self._not_before is not None and now < self._not_before:
            return False
        if not await self._had_a_chance(now):
            return False
        began = monotonic()
        async with transaction(self._engine.store.adapter):
            if self._was_held_up(began):
                return False
            now = self.clock.now()
            runs = await self._take_back_expired(now)
        return self._report(runs, now)

    async def _had_a_chance(self, now: datetime) -> bool:
        """Whether its worker could have renewed since we first saw what ran out."""
        since = self._suspected
        late = self._chance + self.interval + self._leases.beat_interval
        if since is not None and now - since <= late:
            return now - since >= self._chance
        began = monotonic()
        async with transaction(self._engine.store.adapter):
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
        """Wait until every living worker has had time to renew its leases."""
        self._not_before = self.clock.now() + self._leases.beat_interval
        self._suspected = None

    async def at_once(self) -> bool:
        """Take back what ran out without a second look; whether there was anything."""
        if not may_take_over(self.clock):
            return False
        async with transaction(self._engine.store.adapter):
            now = self.clock.now()
            runs = await self._take_back_expired(now)
        return self._report(runs, now)

    async def _take_back_expired(self, now: datetime) -> list[Reaped]:
        await self._leases.renew_own()  # we do live
        return await self._engine.reap(now)

    def _report(self, runs: list[Reaped], now: datetime) -> bool:
        for run in runs:
            self._engine.metrics.add("runs_reclaimed_total", type=run.type)
            counts = self._engine.metrics.minutes.of(now, "run", run.type)
            if run.status == Status.FAILED:
                counts.failed += 1
            else:
                counts.retried += 1
            self.logger.warning(
                "run %s (%s) was abandoned by its worker; it is %s", run.id, run.type, run.status
            )
        if runs:
            self._claimer.wake()
        return bool(runs)

    def on_failure(self, error: BaseException) -> None:
        self._engine.metrics.add("runs_poll_errors_total")
        self._hold_off()  # the database was away for the others too


# Removes finished runs that are older than `Config.work_retention`.


EVERY = timedelta(minutes=1)
BATCH = 500


class Pruner(Loop):
    """Removes them in small batches, or as whole partitions, so that no worker waits for it."""

    name = "maniflex-pruner"

    def __init__(self, engine: RunEngine) -> None:
        super().__init__(engine.clock, EVERY, engine.logger)
        self._engine = engine
        self._after: dict[str, str] = {}  # runs that stay are not looked at again before all others were
        self._partitions = PartitionRetention(engine.store.adapter, RUNS)

    async def tick(self) -> bool:
        keep = self._engine.config.work_retention
        if not keep:
            return False
        before = self.clock.now() - keep
        tables = await self._partitions.tables_to_prune(before)
        return any([await self._prune(table, before) for table in tables])

    async def _prune(self, table: str, before: datetime) -> bool:
        """Remove some runs of a table; whether to go on at once."""
        after = self._after.get(table, "")
        count, self._after[table] = await self._engine.store.prune(before, BATCH, after=after, table=table)
        if count:
            self._engine.metrics.add("runs_pruned_total", count)
        return count > 0 and self._after[table] != ""
