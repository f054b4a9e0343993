"""Claims runs that are due for a worker that has room, and takes back those of workers that died."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic

from maniflex._ids import new_id
from maniflex.background.clock import may_take_over
from maniflex.background.leases import Held, LeaseKeeper
from maniflex.background.loop import Loop
from maniflex.background.partitions.keeper import PartitionRetention
from maniflex.background.partitions.layout import RUNS
from maniflex.background.runs.attempt import Attempt
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import ClaimCursor, ClaimedRun, ClaimTerms, Reaped, Renewed
from maniflex.db.current import executor, transaction
from maniflex.db.port import Adapter, Executor
from maniflex.errors import Conflict

CLAIM_AT_MOST = 1000


class Claimer(Loop):
    """Claims whenever there is room; a full claim is followed by another at once."""

    name = "maniflex-worker"

    def __init__(
        self,
        engine: RunEngine,
        leases: RunLeases,
        *,
        owner: str,
        ranges: Sequence[tuple[str, str]],
        room: Callable[[], int],
        begin: Callable[[Sequence[ClaimedRun]], object],
        portion: int,
        interval: timedelta,
    ) -> None:
        """`room` says for how many runs there is room; `begin` starts claimed runs, a `portion` at most."""
        super().__init__(engine.clock, interval, engine.logger)
        self.store = engine.store  # while the worker is started, one with steady plans
        self.ranges = ranges
        self.unanswered: dict[str, datetime] = {}  # tokens of claims, and until when those may hold
        self._owner = owner
        self._leases = leases
        self._metrics = engine.metrics
        self._room = room
        self._begin = begin
        self._portion = portion
        self._cursor = ClaimCursor()
        self._empty_claims = 0  # in a row

    def wake(self) -> None:
        self._empty_claims = 0
        super().wake()

    def wake_for_room(self) -> None:
        """A run ended; with work waiting, its place is taken at once."""
        if not self._empty_claims:
            self.wake()

    async def tick(self) -> bool:
        room = self._room()
        if room <= 0:
            return False
        empty_claims, self._empty_claims = self._empty_claims, self._empty_claims + 1
        runs = await self.claim(min(room, self._portion), self._cursor)
        if runs:
            self._begin(runs)
            self._empty_claims = 0
            return self._room() > 0  # else there is no room until one ends, and that wakes us
        return empty_claims == 0

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("runs_poll_errors_total")

    async def claim(self, room: int, cursor: ClaimCursor | None = None) -> list[ClaimedRun]:
        """Lease due runs for this worker; runs of its own claims whose answers were lost come first."""
        runs = await self.recover() if self.unanswered else []
        if not runs:
            runs = await self._claim(room, cursor)
        if runs:
            self._count_claimed(runs)
        return runs

    def _count_claimed(self, runs: Sequence[ClaimedRun]) -> None:
        now = self.clock.now()
        numbers: Counter[str] = Counter()
        waits: defaultdict[str, float] = defaultdict(float)  # seconds
        for run in runs:
            numbers[run.type] += 1
            waits[run.type] += max((now - self.store.due_time(run)).total_seconds(), 0)
        for type, number in numbers.items():
            self._metrics.add("runs_claimed_total", number, type=type)
            counts = self._metrics.minutes.of(now, "run", type)
            counts.started += number
            counts.wait += waits[type]

    async def _claim(self, room: int, cursor: ClaimCursor | None) -> list[ClaimedRun]:
        leases, now, token = self._leases, self.clock.now(), new_id()
        until = now + leases.shortest
        limit = min(room, CLAIM_AT_MOST)
        terms = ClaimTerms(self.ranges, limit, self._owner, now, leases.usual, leases.by_type, token)
        try:
            runs = await self.store.claim(terms, cursor)
        except Conflict:  # another worker took a run of the same group in the same moment
            self._metrics.add("runs_claim_conflicts_total")
            return []
        except BaseException:
            self.unanswered[token] = until
            raise
        for run in runs:
            run.until = until
        return runs

    async def recover(self) -> list[ClaimedRun]:
        """The runs of claims whose answers were lost: no other worker begins them, their attempt is spent."""
        runs = []
        held_here = set(self._leases.held)
        for token, until in list(self.unanswered.items()):
            over = self.clock.now() >= until  # before that, what was sent may still be on its way
            recovered_runs = [
                run for run in await self.store.find_claimed(token) if run.held not in held_here
            ]
            for run in recovered_runs:
                run.until = until
            runs += recovered_runs
            if over and not recovered_runs:
                del self.unanswered[token]
        return runs


# The leases of one worker's runs: how long they last, and their renewal.


PATIENCE = 0.05


class RunLeases(LeaseKeeper[Adapter]):
    """Renews the leases of the runs that a worker has, each for as long as its type has one."""

    def __init__(self, engine: RunEngine, running: Collection[Attempt], usual: timedelta) -> None:
        self.usual = usual
        self.by_type = engine.handlers.leases()
        self.shortest = min([usual, *self.by_type.values()])
        self.beat_interval = self.shortest / 3  # how long a living worker may take to renew a lease
        super().__init__(
            engine.store.adapter, self._renew_held, self.beat_interval, engine.logger, self._count_error
        )
        self._engine = engine
        self._running = running
        self._waits_for_lock = False

    async def renew_own(self) -> None:
        """Renew all held leases now, in the open transaction if there is one."""
        leases = self.held
        if leases:
            await self._extend(executor(self._engine.store.adapter), leases)

    async def _renew_held(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        """Renew leases, on the keeper's thread; the ids of those that are not ours any more."""
        gone_ids, locked_ids = await self._extend(adapter, held)
        if locked_ids:
            self.hurry()
            if not self._waits_for_lock:
                self._waits_for_lock = True
                first = next(one for one in held if one.id in locked_ids)
                self.spawn(self._renew_locked(adapter, first))
        return gone_ids

    async def _extend(self, on: Executor, held: Sequence[Held]) -> Renewed:
        now = self._engine.clock.now()
        types = {attempt.claimed.held: attempt.claimed.type for attempt in list(self._running)}
        until = [(h, now + self.by_type.get(types.get(h, ""), self.usual)) for h in held]
        return await self._engine.store.renew(on, until)

    async def _renew_locked(self, adapter: Adapter, locked: Held) -> None:
        """Wait for the lock of a row, to renew its lease before the run is taken back."""
        try:
            while locked in self.held:
                try:
                    async with adapter.transaction() as tx:
                        await tx.write(self._engine.store.bind("lock", id=locked.id))
                        await self._extend(tx, [locked])
                    await self._extend(adapter, self.held or [locked])
                    break
                except Exception:  # it is locked for longer than a statement may wait
                    await asyncio.sleep(PATIENCE)
        finally:
            self._waits_for_lock = False

    def _count_error(self, error: BaseException) -> None:
        self._engine.metrics.add("runs_heartbeat_errors_total")


# Takes back the runs of workers that died.


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
