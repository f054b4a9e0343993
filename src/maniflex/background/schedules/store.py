"""The statements of schedules and firings: claim, fire, advance, prune, in any dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from maniflex._ids import new_id
from maniflex._json import clean, decode_stored
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.parameters import PACKAGE, instant, parameters_of
from maniflex.background.schedules.cron import Times
from maniflex.background.schedules.model import FiringOutcome
from maniflex.db.current import Primary
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.sql.statement import load


class ScheduleStore:
    """All statements about schedules on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        # A replica that lags would have us fire late.
        self._primary = Primary(adapter)
        self._sql = load(PACKAGE, "schedules", adapter.dialect)
        parameters = parameters_of(adapter.dialect)
        self._time, self._texts, self._rows = parameters.time, parameters.texts, parameters.rows

    async def next_due(self, passed: Sequence[str] = ()) -> datetime | None:
        """When the first of all active schedules is due, except for those that were passed over."""
        row = await self._primary.fetch_one(self._sql["next_due"].bind(passed=self._texts(passed)))
        return None if row is None else instant(row[0])

    async def overdue(self, now: datetime) -> tuple[int, datetime | None]:
        """How many schedules are due, and since when the first of them is."""
        row = await self._primary.fetch_one(self._sql["overdue"].bind(now=self._time(now)))
        count, since = (0, None) if row is None else row
        return count, None if since is None else instant(since)

    async def claim(self, tx: Tx, now: datetime, limit: int, passed: Sequence[str]) -> list[Due]:
        """Lock due schedules that no other scheduler holds, for as long as the transaction lasts."""
        statement = self._sql["claim"].bind(now=self._time(now), limit=limit, passed=self._texts(passed))
        return [Due.of(row) for row in await tx.fetch(statement)]

    async def claim_one(self, tx: Tx, schedule_id: str, now: datetime) -> list[Due]:
        """Lock the schedule if it is still due and no other scheduler holds it."""
        rows = await tx.fetch(self._sql["claim_one"].bind(id=schedule_id, now=self._time(now)))
        return [Due.of(row) for row in rows]

    async def fire(
        self, tx: Tx, planned: Iterable[tuple[Due, Firing]], now: datetime, *, manual: bool = False
    ) -> list[Fired]:
        """Record due times; those that were there already are left out."""
        drafts = [Fired(new_id(), due, firing) for due, firing in planned]
        if not drafts:
            return []
        rows = [
            (
                d.id,
                d.schedule.id,
                d.schedule.name,
                self._time(d.firing.due_at),
                d.firing.outcome,
                self._time(d.firing.skipped_until),
                d.schedule.tenant_id,
            )
            for d in drafts
        ]
        values = self._rows(("ids", "schedules", "names", "dues", "outcomes", "untils", "tenants"), rows)
        fresh = await tx.write(self._sql["fire"].bind(now=self._time(now), manual=manual, **values))
        new_ids = {id for (id,) in fresh}
        return [draft for draft in drafts if draft.id in new_ids]

    async def link_runs(self, tx: Tx, runs: Sequence[tuple[str, str]]) -> None:
        """Note which run each firing became."""
        if runs:
            await tx.execute(self._sql["ran"].bind(**self._rows(("ids", "runs"), runs)))

    async def advance(self, tx: Tx, steps: Sequence[ScheduleStep], now: datetime) -> None:
        """Move schedules on to their next due times."""
        rows = [
            (
                s.id,
                self._time(s.next_run_at),
                self._time(s.last_run_at),
                None if s.error is None else clean(s.error),
            )
            for s in steps
        ]
        if rows:
            values = self._rows(("ids", "nexts", "lasts", "errors"), rows)
            await tx.execute(self._sql["advance"].bind(now=self._time(now), **values))

    async def active(self, now: datetime, after: str, limit: int) -> list[Planned]:
        """Active schedules that are not due, by id; so many of those behind the id `after`."""
        statement = self._sql["active"].bind(now=self._time(now), after=after, limit=limit)
        rows = await self._primary.fetch(statement)
        return [Planned(id, name, cron, timezone, instant(due)) for id, name, cron, timezone, due in rows]

    async def bring_back(self, changes: Sequence[tuple[Planned, datetime]], now: datetime) -> int:
        """Give schedules an earlier due time, unless theirs was changed meanwhile; how many got it."""
        rows = [(one.id, self._time(one.next_run_at), self._time(due)) for one, due in changes]
        values = self._rows(("ids", "olds", "nexts"), rows)
        ids = [one.id for one, _ in changes]
        bring_back = self._sql["bring_back"].bind(now=self._time(now), **values)
        unskip = self._sql["unskip"].bind(now=self._time(now), ids=self._texts(ids))
        return len((await self.adapter.batch([unskip, bring_back]))[-1])

    async def touch(self, tx: Tx, schedule_id: str, now: datetime) -> None:
        """Note that the schedule ran outside its times."""
        await tx.execute(self._sql["touched"].bind(id=schedule_id, now=self._time(now)))

    async def remove(self, run: Executor, ids: Sequence[str]) -> list[str]:
        """Remove schedules; the ids of those that were there."""
        rows = await run.write(self._sql["remove"].bind(ids=self._texts(ids)))
        return [id for (id,) in rows]

    async def prune(self, before: datetime, limit: int) -> int:
        """Forget firings from before that time, so many at once; how many there were."""
        statement = self._sql["prune"].bind(before=self._time(before), limit=limit)
        return len(await self.adapter.write(statement))


# Schedules and their firings as a scheduler reads and writes them.


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule that is due, as far as firing needs to know it."""

    id: str
    name: str
    cron: str
    timezone: str
    kind: str
    target: str
    payload: Any  # `Unreadable` where the stored text is no JSON
    policy: str
    attempts: int | None
    allow_private: bool
    next_run_at: datetime
    tenant_id: str | None = None
    actor_id: str | None = None

    @classmethod
    def of(cls, row: Row) -> Due:
        """The schedule of a row that the statements `claim` and `claim_one` return."""
        id, name, cron, timezone, kind, target, payload, policy, attempts, allow_private, due, *owner = row
        value, private = decode_stored(payload), bool(allow_private)
        what = (kind, target, value, policy, attempts, private)
        return cls(id, name, cron, timezone, *what, instant(due), *owner)


@dataclass(frozen=True, slots=True)
class Planned:
    """When an active schedule is due next."""

    id: str
    name: str
    cron: str
    timezone: str
    next_run_at: datetime


@dataclass(frozen=True, slots=True)
class Fired:
    """A firing of a schedule that was not there before."""

    id: str
    schedule: Due
    firing: Firing


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """Where a schedule goes from here; without a next time it is inactive, for the reason given."""

    id: str
    next_run_at: datetime | None
    last_run_at: datetime | None = None
    error: str | None = None


# The plan of a schedule that is due: which of its due times fire, and when it is due next.
#
# Pure arithmetic over `Times`, so that every policy is a one-line test.


@dataclass(frozen=True, slots=True)
class Firing:
    """One due time; when it is skipped, so is every other one before `skipped_until`."""

    due_at: datetime
    skipped_until: datetime | None = None
    outcome: FiringOutcome = FiringOutcome.FIRED


@dataclass(frozen=True, slots=True)
class Plan:
    """The firings to record, and the next due time; there is none when the calendar runs out."""

    firings: tuple[Firing, ...]
    next_run_at: datetime | None


def plan(
    cron: Times, policy: str, due: datetime, now: datetime, *, grace: timedelta, most: int = 1000
) -> Plan:
    """The plan of a schedule; `due` is its first due time that was not fired, not later than `now`."""
    if policy == "all":
        return _every(cron, due, now, most)
    latest, following = cron.around(due, now)
    if policy == "skip" and now - latest > grace:
        return Plan((Firing(due, following, FiringOutcome.SKIPPED),), following)
    skips = (Firing(due, latest, FiringOutcome.SKIPPED),) if due < latest else ()
    return Plan((*skips, Firing(latest)), following)


def _every(cron: Times, due: datetime, now: datetime, most: int) -> Plan:
    firings: list[Firing] = []
    following: datetime | None = due
    while following is not None and following <= now and len(firings) < most:
        firings.append(Firing(following))
        following = cron.after(following)
    return Plan(tuple(firings), following)


# Forgets firings of schedules from long ago.


PRUNE_EVERY = timedelta(minutes=10)
PRUNE_BATCH = 1000


class FiringPruner(Loop):
    """Forgets firings that are older than `Config.work_retention`."""

    name = "maniflex-schedule-pruner"

    def __init__(self, environment: Environment, store: ScheduleStore) -> None:
        super().__init__(environment.clock, PRUNE_EVERY, environment.logger)
        self._keep = environment.config.work_retention
        self._store = store

    async def tick(self) -> bool:
        if not self._keep:
            return False
        return await self._store.prune(self.clock.now() - self._keep, PRUNE_BATCH) == PRUNE_BATCH
