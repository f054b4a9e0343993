"""Fires what is due: in one transaction the firing row, the run it becomes and the next due time.

However many schedulers there are, a due time becomes one run: they hold different schedules while
they fire them, and the unique firing row refuses whatever comes twice. A scheduler that dies in the
middle leaves nothing behind, and the next one finds the schedule still due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from maniflex._clock import Clock
from maniflex.background.clock import may_fire
from maniflex.background.jsons import Unreadable
from maniflex.background.loop import Loop
from maniflex.background.parts import Parts
from maniflex.background.schedules.cron import Cron
from maniflex.background.schedules.definition import check_target
from maniflex.background.schedules.plan import Firing, Plan, plan
from maniflex.background.schedules.store import Due, Fired, ScheduleStore, Step
from maniflex.background.schedules.targets import submit
from maniflex.background.watch import Watched
from maniflex.db.current import transaction
from maniflex.db.port import Tx
from maniflex.errors import DatabaseError, InvalidSchedule, RequestError

BATCH = 500  # schedules in one transaction
CATCH_UP = 1000  # firings in one transaction, and of one schedule in one tick
LEAST_GRACE = timedelta(seconds=60)
HELD_ELSEWHERE = timedelta(milliseconds=500)  # until we look again for what another scheduler holds
PRUNE_EVERY = timedelta(minutes=10)
PRUNE_BATCH = 1000


@dataclass(frozen=True, slots=True)
class _Round:
    """What one transaction did."""

    seen: int
    fired: int = 0
    passed: tuple[str, ...] = ()  # still due, but not to be looked at again in this tick
    late: bool = False  # one of them is, because it has missed too much to catch up with at once
    unknown: tuple[str, ...] = ()  # left to other machines, because this one does not know their zone


class Scheduler:
    """A service that ticks every poll interval, and sooner when something is due sooner."""

    def __init__(
        self,
        parts: Parts,
        store: ScheduleStore,
        *,
        grace: timedelta | None = None,
        batch: int = BATCH,
        catch_up: int = CATCH_UP,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        poll = parts.config.schedule_poll_interval
        self.grace = max(poll * 2, LEAST_GRACE) if grace is None else grace
        self.loop = _Ticker(self, parts, poll)
        self.more = False  # a schedule has missed so much that the next tick goes on with it
        self._next: datetime | None = None
        self._unknown_zones: set[str] = set()  # for which it was said in the log
        self._parts = parts
        self._store = store
        self._batch = batch
        self._catch_up = catch_up
        self._prepare = prepare

    async def start(self) -> None:
        if self._prepare is not None:
            await self._prepare()
        await self.loop.start()

    async def stop(self) -> None:
        await self.loop.stop()

    @property
    def parts_to_watch(self) -> Sequence[Watched]:
        return self.loop.parts_to_watch

    def wake(self) -> None:
        """A schedule has changed; look again when the next one is due."""
        self.loop.wake()

    async def tick(self) -> int:
        """Fire every schedule that is due now; how many runs that made."""
        self.more = False
        if not may_fire(self._parts.clock):
            self._next = None
            return 0
        now = self._parts.clock.now()
        self._next = await self._store.next_due()
        if self._next is None or self._next > now:
            return 0
        fired, passed, unknown = 0, list[str](), list[str]()
        while (done := await self._round(now, passed)).seen:
            fired += done.fired
            passed += [*done.passed, *done.unknown]
            unknown += done.unknown
            self.more |= done.late
        self._next = await self._store.next_due(unknown)
        return fired

    def until_next(self, clock: Clock, poll: timedelta) -> timedelta:
        """How long nothing is due, as far as one knows."""
        if self._next is None:
            return poll
        left = self._next - clock.now()
        return min(poll, left if left > timedelta(0) else HELD_ELSEWHERE)

    async def _round(self, now: datetime, passed: Sequence[str]) -> _Round:
        try:
            async with transaction(self._store.adapter) as tx:
                due = await self._store.claim(tx, now, self._batch, passed)
                done = await self._fire(tx, due, now)
        except RequestError as error:
            if error.retryable:
                raise
        except Exception as error:
            self._parts.logger.warning("schedules are fired one by one: %s", error, exc_info=error)
        else:
            return done
        return await self._one_by_one(now, passed)

    async def _one_by_one(self, now: datetime, passed: Sequence[str]) -> _Round:
        """One of them cannot be fired; find out which, and let the others go on."""
        async with transaction(self._store.adapter) as tx:
            due = await self._store.claim(tx, now, self._batch, passed)
        fired, late, left, unknown, failure = 0, False, list[str](), list[str](), None
        for schedule in due:
            try:
                async with transaction(self._store.adapter) as tx:
                    done = await self._fire(tx, await self._store.claim_one(tx, schedule.id, now), now)
                fired, late = fired + done.fired, late or done.late
                left += done.passed if done.seen else [schedule.id]
                unknown += done.unknown
            except DatabaseError as error:  # perhaps not the schedule's fault: it stays due
                left.append(schedule.id)
                failure = error
            except Exception as error:
                if isinstance(error, RequestError) and error.retryable:
                    raise
                await self._give_up(schedule, error, now)
        if failure is not None and not fired:
            raise failure
        return _Round(len(due), fired, tuple(left), late, tuple(unknown))

    async def _give_up(self, schedule: Due, error: Exception, now: datetime) -> None:
        self._disabled(schedule, str(error))
        async with transaction(self._store.adapter) as tx:
            await self._store.advance(tx, [Step(schedule.id, None, error=str(error))], now)

    async def _fire(self, tx: Tx, due: Sequence[Due], now: datetime) -> _Round:
        planned: list[tuple[Due, Firing]] = []
        steps: list[Step] = []
        unknown: list[str] = []
        for schedule in due:
            if len(planned) >= self._catch_up:
                break  # what is left stays due, for the next transaction
            outcome = self._planned(schedule, now, self._catch_up - len(planned))
            if outcome is None:
                unknown.append(schedule.id)
                continue
            firings, step = outcome
            planned += [(schedule, firing) for firing in firings]
            steps.append(step)
        fresh = await self._store.fire(tx, planned, now)
        fired = [one for one in fresh if one.firing.outcome == "fired"]
        await self._store.ran(tx, await submit(self._parts.work, fired, tx))
        await self._store.advance(tx, steps, now)
        tx.after_commit(lambda: self._count(fresh))
        late = tuple(s.id for s in steps if s.next_run_at is not None and s.next_run_at <= now)
        return _Round(len(steps) + len(unknown), len(fired), late, bool(late), tuple(unknown))

    def _planned(self, schedule: Due, now: datetime, most: int) -> tuple[tuple[Firing, ...], Step] | None:
        """The firings of a schedule and where it goes on; None for one that is left to other machines."""
        try:
            found = self._plan(schedule, now, most)
        except InvalidSchedule as error:
            if error.field == "timezone":
                self._pass_over(schedule)
                return None
            self._disabled(schedule, error.message)
            return (), Step(schedule.id, None, error=error.message)
        ran = now if any(f.outcome == "fired" for f in found.firings) else None
        over = None if found.next_run_at is not None else "cron: it is never due again"
        return found.firings, Step(schedule.id, found.next_run_at, ran, over)

    def _plan(self, schedule: Due, now: datetime, most: int) -> Plan:
        cron = Cron.parse(schedule.cron, schedule.timezone)
        check_target(schedule.kind, schedule.target)
        if isinstance(schedule.payload, Unreadable):
            raise InvalidSchedule("payload", f"what is stored cannot be read: {schedule.payload.reason}")
        return plan(cron, schedule.policy, schedule.next_run_at, now, grace=self.grace, most=most)

    def _pass_over(self, schedule: Due) -> None:
        """Count a schedule whose zone this machine does not know; another machine may know it."""
        self._parts.metrics.add("schedules_unknown_zone_total", timezone=schedule.timezone)
        if schedule.timezone not in self._unknown_zones:
            self._unknown_zones.add(schedule.timezone)
            self._parts.logger.error(
                "this machine does not know the time zone %r; its schedules, such as %r, are left to others",
                schedule.timezone,
                schedule.name,
            )

    def _disabled(self, schedule: Due, reason: str) -> None:
        self._parts.metrics.add("schedules_disabled_total")
        self._parts.logger.error("schedule %r is inactive from now on: %s", schedule.name, reason)

    def _count(self, fresh: Sequence[Fired]) -> None:
        for outcome in ("fired", "skipped"):
            count = sum(one.firing.outcome == outcome for one in fresh)
            if count:
                self._parts.metrics.add(f"schedules_{outcome}_total", count)


class _Ticker(Loop):
    """The loop of a scheduler, which pauses no longer than until the next due time."""

    name = "maniflex-scheduler"

    def __init__(self, scheduler: Scheduler, parts: Parts, poll: timedelta) -> None:
        super().__init__(parts.clock, poll, parts.logger)
        self._scheduler = scheduler
        self._metrics = parts.metrics

    async def tick(self) -> bool:
        await self._scheduler.tick()
        return self._scheduler.more

    def pause(self) -> timedelta:
        return self._scheduler.until_next(self.clock, super().pause())

    def failed(self, error: BaseException) -> None:
        self._metrics.add("schedules_poll_errors_total")


class Pruner(Loop):
    """Forgets firings that are older than `Config.work_retention`."""

    name = "maniflex-schedule-pruner"

    def __init__(self, parts: Parts, store: ScheduleStore) -> None:
        super().__init__(parts.clock, PRUNE_EVERY, parts.logger)
        self._keep = parts.config.work_retention
        self._store = store

    async def tick(self) -> bool:
        if not self._keep:
            return False
        return await self._store.prune(self.clock.now() - self._keep, PRUNE_BATCH) == PRUNE_BATCH
