"""The rows of schedules and firings, in either database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from maniflex._ids import new_id
from maniflex.background.json_text import clean, decode_stored, instant
from maniflex.background.schedules.plan import Firing
from maniflex.background.statements import load
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.sql.codec import encode_datetime
from maniflex.sql.statement import Dialect


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


class ScheduleStore:
    """All statements about schedules on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._sqlite = adapter.dialect is Dialect.SQLITE
        self._sql = load("schedules", adapter.dialect)

    async def next_due(self, passed: Sequence[str] = ()) -> datetime | None:
        """When the first of all active schedules is due, except for those that were passed over."""
        # From where writes go: a replica that lags would have us fire late. SQLite has one file, and
        # there a write would wait for the writer.
        read = self.adapter.fetch if self._sqlite else self.adapter.write
        rows = await read(self._sql["next_due"].bind(passed=_json(passed) if self._sqlite else list(passed)))
        return instant(rows[0][0]) if rows else None

    async def overdue(self, now: datetime) -> tuple[int, datetime | None]:
        """How many schedules are due, and since when the first of them is."""
        row = await self.adapter.fetch_one(self._sql["overdue"].bind(now=self._time(now)))
        return (0, None) if row is None or row[1] is None else (row[0], instant(row[1]))

    async def claim(self, tx: Tx, now: datetime, limit: int, passed: Sequence[str]) -> list[Due]:
        """Lock due schedules that no other scheduler holds, for as long as the transaction lasts."""
        passed_ids = _json(passed) if self._sqlite else list(passed)
        statement = self._sql["claim"].bind(now=self._time(now), limit=limit, passed=passed_ids)
        return [_due(row) for row in await tx.fetch(statement)]

    async def claim_one(self, tx: Tx, schedule_id: str, now: datetime) -> list[Due]:
        """Lock the schedule if it is still due and no other scheduler holds it."""
        rows = await tx.fetch(self._sql["claim_one"].bind(id=schedule_id, now=self._time(now)))
        return [_due(row) for row in rows]

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
            )
            for d in drafts
        ]
        names = ("ids", "schedules", "names", "dues", "outcomes", "untils")
        values = self._rows(names, rows)
        fresh = await tx.write(self._sql["fire"].bind(now=self._time(now), manual=manual, **values))
        new_ids = {row[0] for row in fresh}
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
        read = self.adapter.fetch if self._sqlite else self.adapter.write
        return [
            Planned(id, name, cron, timezone, instant(due))
            for id, name, cron, timezone, due in await read(statement)
        ]

    async def bring_back(self, changes: Sequence[tuple[Planned, datetime]], now: datetime) -> int:
        """Give schedules an earlier due time, unless theirs was changed meanwhile; how many got it."""
        rows = [(one.id, self._time(one.next_run_at), self._time(due)) for one, due in changes]
        values = self._rows(("ids", "olds", "nexts"), rows)
        ids = [one.id for one, _ in changes]
        bring_back = self._sql["bring_back"].bind(now=self._time(now), **values)
        unskip = self._sql["unskip"].bind(now=self._time(now), ids=_json(ids) if self._sqlite else ids)
        return len((await self.adapter.batch([unskip, bring_back]))[-1])

    async def touch(self, tx: Tx, schedule_id: str, now: datetime) -> None:
        """Note that the schedule ran outside its times."""
        await tx.execute(self._sql["touched"].bind(id=schedule_id, now=self._time(now)))

    async def remove(self, run: Executor, ids: Sequence[str]) -> list[str]:
        """Remove schedules; the ids of those that were there."""
        id_list = _json(ids) if self._sqlite else list(ids)
        return [row[0] for row in await run.write(self._sql["remove"].bind(ids=id_list))]

    async def prune(self, before: datetime, limit: int) -> int:
        """Forget firings from before that time, so many at once; how many there were."""
        statement = self._sql["prune"].bind(before=self._time(before), limit=limit)
        return len(await self.adapter.write(statement))

    def _rows(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Many rows as few parameters: one JSON text, or one array for each column."""
        if self._sqlite:
            return {"rows": _json(rows)}
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def _time(self, moment: datetime | None) -> Any:
        return encode_datetime(moment) if self._sqlite and moment is not None else moment


def _due(row: Row) -> Due:
    id, name, cron, timezone, kind, target, payload, policy, attempts, allow_private, due = row
    value = decode_stored(payload)
    private = bool(allow_private)
    return Due(id, name, cron, timezone, kind, target, value, policy, attempts, private, instant(due))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
