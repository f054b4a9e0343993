"""Fires due schedules: in one transaction the firing row, the run it becomes and the next due time.

However many schedulers there are, a due time becomes one run: they hold different schedules while
they fire them, and the unique firing row refuses a due time that comes twice. A scheduler that dies in the
middle leaves nothing behind, and the next one finds the schedule still due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from maniflex._clock import Clock
from maniflex._json import Unreadable
from maniflex.background.clock import may_fire
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop, WatchedPart
from maniflex.background.schedules.cron import Cron
from maniflex.background.schedules.definition import check_target
from maniflex.background.schedules.model import FiringOutcome
from maniflex.background.schedules.store import Due, Fired, Firing, Plan, ScheduleStep, ScheduleStore, plan
from maniflex.background.schedules.targets import submit
from maniflex.db.current import transaction
from maniflex.db.port import Tx
from maniflex.errors import DatabaseError, InvalidSchedule, RequestError

BATCH = 500  # schedules in one transaction
CATCH_UP = 1000  # firings in one transaction, and of one schedule in one tick
LEAST_GRACE = timedelta(seconds=60)
HELD_ELSEWHERE = timedelta(milliseconds=500)  # until we look again for what another scheduler holds


@dataclass(frozen=True, slots=True)
class _ScheduleRound:
    """The counts of one transaction."""

    seen: int
    fired: int = 0
    passed: tuple[str, ...] = ()  # still due, but not to be looked at again in this tick
    late: bool = False  # one of them is, because it has missed too much to catch up with at once
    unknown: tuple[str, ...] = ()  # left to other machines, because this one does not know their zone


class Scheduler:
    """A service that ticks every poll interval, and sooner when something is due sooner."""

    def __init__(
        self,
        environment: Environment,
        store: ScheduleStore,
        *,
        grace: timedelta | None = None,
        batch: int = BATCH,
        catch_up: int = CATCH_UP,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        poll = environment.config.schedule_poll_interval
        self.grace = max(poll * 2, LEAST_GRACE) if grace is None else grace
        self.loop = _ScheduleLoop(self, environment, poll)
        self.more = False  # a schedule has missed so much that the next tick goes on with it
        self._next: datetime | None = None
        self._unknown_zones: set[str] = set()  # for which it was said in the log
        self._environment = environment
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
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        return self.loop.parts_to_watch

    def wake(self) -> None:
        """A schedule has changed; look again when the next one is due."""
        self.loop.wake()

    async def tick(self) -> int:
        """Fire every schedule that is due now; how many runs that made."""
        self.more = False
        if not may_fire(self._environment.clock):
            self._next = None
            return 0
        now = self._environment.clock.now()
        self._next = await self._store.next_due()
        if self._next is None or self._next > now:
            return 0
        fired_count, passed_ids, unknown_ids = 0, list[str](), list[str]()
        while (outcome := await self._round(now, passed_ids)).seen:
            fired_count += outcome.fired
            passed_ids += [*outcome.passed, *outcome.unknown]
            unknown_ids += outcome.unknown
            self.more |= outcome.late
        self._next = await self._store.next_due(unknown_ids)
        return fired_count

    def until_next(self, clock: Clock, poll: timedelta) -> timedelta:
        """How long nothing is due, as far as one knows."""
        if self._next is None:
            return poll
        remaining = self._next - clock.now()
        return min(poll, remaining if remaining > timedelta(0) else HELD_ELSEWHERE)

    async def _round(self, now: datetime, passed: Sequence[str]) -> _ScheduleRound:
        try:
            async with transaction(self._store.adapter) as tx:
                due = await self._store.claim(tx, now, self._batch, passed)
                outcome = await self._fire(tx, due, now)
        except RequestError as error:
            if error.retryable:
                raise
        except Exception as error:
            self._environment.logger.warning("schedules are fired one by one: %s", error, exc_info=error)
        else:
            return outcome
        return await self._one_by_one(now, passed)

    async def _one_by_one(self, now: datetime, passed: Sequence[str]) -> _ScheduleRound:
        """Fire schedules one by one, because one of them cannot be fired, and the others go on."""
        async with transaction(self._store.adapter) as tx:
            due = await self._store.claim(tx, now, self._batch, passed)
        fired_count, late, still_due, unknown, failure = 0, False, list[str](), list[str](), None
        for schedule in due:
            try:
                async with transaction(self._store.adapter) as tx:
                    outcome = await self._fire(tx, await self._store.claim_one(tx, schedule.id, now), now)
                fired_count, late = fired_count + outcome.fired, late or outcome.late
                still_due += outcome.passed if outcome.seen else [schedule.id]
                unknown += outcome.unknown
            except DatabaseError as error:  # perhaps not the schedule's fault: it stays due
                still_due.append(schedule.id)
                failure = error
            except Exception as error:
                if isinstance(error, RequestError) and error.retryable:
                    raise
                await self._give_up(schedule, error, now)
        if failure is not None and not fired_count:
            raise failure
        return _ScheduleRound(len(due), fired_count, tuple(still_due), late, tuple(unknown))

    async def _give_up(self, schedule: Due, error: Exception, now: datetime) -> None:
        self._report_disabled(schedule, str(error))
        async with transaction(self._store.adapter) as tx:
            await self._store.advance(tx, [ScheduleStep(schedule.id, None, error=str(error))], now)

    async def _fire(self, tx: Tx, due: Sequence[Due], now: datetime) -> _ScheduleRound:
        due_firings: list[tuple[Due, Firing]] = []
        steps: list[ScheduleStep] = []
        unknown: list[str] = []
        for schedule in due:
            if len(due_firings) >= self._catch_up:
                break  # what is left stays due, for the next transaction
            outcome = self._firings_and_step(schedule, now, self._catch_up - len(due_firings))
            if outcome is None:
                unknown.append(schedule.id)
                continue
            firings, step = outcome
            due_firings += [(schedule, firing) for firing in firings]
            steps.append(step)
        fresh = await self._store.fire(tx, due_firings, now)
        to_submit = [one for one in fresh if one.firing.outcome is FiringOutcome.FIRED]
        await self._store.link_runs(tx, await submit(self._environment.runs, to_submit, tx))
        await self._store.advance(tx, steps, now)
        tx.after_commit(lambda: self._count(fresh))
        late = tuple(s.id for s in steps if s.next_run_at is not None and s.next_run_at <= now)
        return _ScheduleRound(len(steps) + len(unknown), len(to_submit), late, bool(late), tuple(unknown))

    def _firings_and_step(
        self, schedule: Due, now: datetime, most: int
    ) -> tuple[tuple[Firing, ...], ScheduleStep] | None:
        """The firings of a schedule and where it goes on; None for one that is left to other machines."""
        try:
            schedule_plan = self._plan(schedule, now, most)
        except InvalidSchedule as error:
            if error.field == "timezone":
                self._pass_over(schedule)
                return None
            self._report_disabled(schedule, error.message)
            return (), ScheduleStep(schedule.id, None, error=error.message)
        last_run_at = now if any(f.outcome is FiringOutcome.FIRED for f in schedule_plan.firings) else None
        over = None if schedule_plan.next_run_at is not None else "cron: it is never due again"
        return schedule_plan.firings, ScheduleStep(schedule.id, schedule_plan.next_run_at, last_run_at, over)

    def _plan(self, schedule: Due, now: datetime, most: int) -> Plan:
        cron = Cron.parse(schedule.cron, schedule.timezone)
        check_target(schedule.kind, schedule.target)
        if isinstance(schedule.payload, Unreadable):
            raise InvalidSchedule("payload", f"what is stored cannot be read: {schedule.payload.reason}")
        return plan(cron, schedule.policy, schedule.next_run_at, now, grace=self.grace, most=most)

    def _pass_over(self, schedule: Due) -> None:
        """Count a schedule whose zone this machine does not know; another machine may know it."""
        self._environment.metrics.add("schedules_unknown_zone_total", timezone=schedule.timezone)
        if schedule.timezone not in self._unknown_zones:
            self._unknown_zones.add(schedule.timezone)
            self._environment.logger.error(
                "this machine does not know the time zone %r; its schedules, such as %r, are left to others",
                schedule.timezone,
                schedule.name,
            )

    def _report_disabled(self, schedule: Due, reason: str) -> None:
        self._environment.metrics.add("schedules_disabled_total")
        self._environment.logger.error("schedule %r is inactive from now on: %s", schedule.name, reason)

    def _count(self, fresh: Sequence[Fired]) -> None:
        for outcome in FiringOutcome:
            count = sum(one.firing.outcome is outcome for one in fresh)
            if count:
                self._environment.metrics.add(f"schedules_{outcome}_total", count)


class _ScheduleLoop(Loop):
    """The loop of a scheduler, which pauses no longer than until the next due time."""

    name = "maniflex-scheduler"

    def __init__(self, scheduler: Scheduler, environment: Environment, poll: timedelta) -> None:
        super().__init__(environment.clock, poll, environment.logger)
        self._scheduler = scheduler
        self._metrics = environment.metrics

    async def tick(self) -> bool:
        await self._scheduler.tick()
        return self._scheduler.more

    def pause(self) -> timedelta:
        return self._scheduler.until_next(self.clock, super().pause())

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("schedules_poll_errors_total")
