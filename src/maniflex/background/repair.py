"""Brings back times that no clock can have meant.

A server whose clock was years ahead for a moment leaves leases that do not end and schedules that are
not due before then. Here such times are found and set to what they should be, at the start and now
and then. Nothing is touched while the time itself is in doubt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from maniflex.background.clock import may_take_over
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.api import LONGEST_BACKOFF
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.schedules.cron import Cron
from maniflex.background.schedules.store import Planned, ScheduleStore
from maniflex.errors import InvalidSchedule

EVERY = timedelta(minutes=10)
LOOK_AGAIN = timedelta(seconds=10)
# Workers may have longer leases than we know of, so a lease is only impossible when it is far too long,
# and then its worker, should it live, has time to renew it.
MARGIN = timedelta(days=1)
LEAST_LEASE = timedelta(minutes=5)
CLOCKS_DIFFER = timedelta(minutes=1)  # by less than that
PAGE = 500
KINDS = 500  # of messages, looked at each time

Repair = Callable[[datetime], Awaitable[int]]


class Repairer(Loop):
    """Runs the repairs, unless the time is in doubt."""

    name = "maniflex-repairer"

    def __init__(self, parts: Environment, repairs: Sequence[tuple[str, Repair]]) -> None:
        super().__init__(parts.clock, EVERY, parts.logger)
        self._metrics: Metrics = parts.metrics
        self._repairs = repairs
        self._in_doubt = False

    async def tick(self) -> bool:
        self._in_doubt = not may_take_over(self.clock)
        for what, repair in () if self._in_doubt else self._repairs:
            count = await repair(self.clock.now())
            if count:
                self._metrics.add("impossible_times_total", count, of=what)
                self.logger.warning("%d %s had times that no clock can have meant; corrected", count, what)
        return False

    def pause(self) -> timedelta:
        return LOOK_AGAIN if self._in_doubt else super().pause()


def repair_runs(parts: Environment) -> Repair:
    """End leases of runs that last far longer than those of their type, where the type is handled here."""

    async def repair(now: datetime) -> int:
        runs, usual = parts.runs, parts.config.work_lease
        own = runs.handlers.leases()
        leases = [(handler.type, own.get(handler.type, usual)) for handler in runs.handlers]
        return await runs.store.bring_back(
            [(type, now + lease + MARGIN, now + max(lease, LEAST_LEASE)) for type, lease in leases]
        )

    return repair


def repair_messages(parts: Environment) -> Repair:
    """End leases of messages, and pauses between attempts, that last far too long.

    Each time for so many kinds, along an index: the cost does not grow with the messages that wait.
    """
    store, lease = OutboxStore(parts.adapter), parts.config.work_lease
    after = ""  # the kind to go on behind

    async def repair(now: datetime) -> int:
        nonlocal after
        kinds = await store.kinds_behind(after, KINDS)
        after = kinds[-1] if len(kinds) == KINDS else ""
        until, latest = now + max(lease, LEAST_LEASE), now + lease + MARGIN
        leases = await store.bring_back_leases(kinds, until=until, latest=latest)
        return leases + await store.bring_back_pauses(kinds, now, latest=now + LONGEST_BACKOFF + MARGIN)

    return repair


def repair_schedules(parts: Environment) -> Repair:
    """Give schedules whose next due time lies behind the one that follows from now that one."""
    store = ScheduleStore(parts.adapter)

    async def repair(now: datetime) -> int:
        count, after = 0, ""
        while page := await store.active(now, after, PAGE):
            after = page[-1].id
            changes = [(one, due) for one in page if (due := due_time_missed(one, now)) is not None]
            if changes:
                count += await store.bring_back(changes, now)
        return count

    return repair


def due_time_missed(schedule: Planned, now: datetime) -> datetime | None:
    """The due time that the schedule would leave out; None when its next one is possible."""
    try:
        cron = Cron.parse(schedule.cron, schedule.timezone)
    except InvalidSchedule:
        return None
    possible = cron.after(now + CLOCKS_DIFFER)
    if possible is None or schedule.next_run_at <= possible:
        return None
    return cron.after(now)
