"""The tables of processes and of what they did, and the statements about them in any dialect."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from maniflex._ids import new_ids
from maniflex._json import encode_plain
from maniflex.background.metrics import Counts, MinuteKey
from maniflex.background.outbox.handlers import EVERY_KIND, FRAMEWORK
from maniflex.background.parameters import PACKAGE, instant, parameters_of
from maniflex.db.current import Primary
from maniflex.db.port import Adapter, Row
from maniflex.model.base import Model
from maniflex.model.declared import Index
from maniflex.model.field import field
from maniflex.sql.statement import Sql, load

# The tables of processes and of what they did, as ordinary models.
#
# Their statements are in `background/sql`. A process has one row, which it writes every ten seconds while
# it lives; what it did in a minute is one row for each kind and type of work.


BEAT = timedelta(seconds=10)
LATE_AFTER = 3 * BEAT
GONE_AFTER = 10 * BEAT


class ProcessState(StrEnum):
    """Whether a process is there, by when it was last seen."""

    ALIVE = "alive"
    LATE = "late"
    GONE = "gone"


class WorkProcess(
    Model,
    table="work_process",
    headless=True,
    indices=[Index(("seen_at",), name="work_process_seen_idx")],
):
    """A process of the application: where it runs, the work it takes and when it was last seen."""

    host: str
    pid: int
    role: str  # server, worker or scheduler
    version: str  # of maniflex
    types: list[str] = field(default_factory=list)  # of runs: exact ones, and prefixes such as `billing.*`
    kinds: list[str] = field(default_factory=list)  # of messages; `*` for every kind of the application
    schedules: bool = field(default=False)  # whether it fires schedules
    concurrency: int = field(default=0)
    running: int = field(default=0)
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None = field(default=None)  # when it stopped in good order
    lag_ms: int = field(default=0)  # how late its event loop was at worst, since it was seen before

    def state(self, now: datetime) -> ProcessState:
        """Whether it is alive: seen a moment ago, and not stopped."""
        age = now - self.seen_at
        if self.stopped_at is not None or age > GONE_AFTER:
            return ProcessState.GONE
        return ProcessState.LATE if age > LATE_AFTER else ProcessState.ALIVE

    def takes(self, type: str) -> bool:
        """Whether it takes runs of this type."""
        return any(type == one or (one.endswith("*") and type.startswith(one[:-1])) for one in self.types)

    def takes_message(self, kind: str) -> bool:
        """Whether it takes messages of this kind; those of the framework only where they are named."""
        return kind in self.kinds or (EVERY_KIND in self.kinds and not kind.startswith(FRAMEWORK))


class WorkStat(
    Model,
    table="work_stat",
    headless=True,
    indices=[
        Index(("minute", "kind", "type", "process_id", "seconds"), unique=True, name="work_stat_minute_idx")
    ],
):
    """What one process did of one type in a minute, or all processes in an hour that is long over."""

    minute: datetime  # its beginning
    seconds: int = field(default=60)  # how long it is: 60, or 3600
    process_id: str = field(relation=None)  # "" when it is about all of them
    kind: str  # run, message, request, or due: runs that were due at some moment of the minute
    type: str
    started: int = field(default=0)
    succeeded: int = field(default=0)
    failed: int = field(default=0)
    retried: int = field(default=0)
    busy_ms: int = field(default=0)
    wait_ms: int = field(default=0)


HOUR = timedelta(hours=1)
# One for each column of a record, in the order of its rows.
_RECORDED = (
    "ids",
    "minutes",
    "kinds",
    "types",
    "starts",
    "successes",
    "failures",
    "retries",
    "busies",
    "waits",
)


class Sums(NamedTuple):
    """What was done of something."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    busy_ms: int = 0
    wait_ms: int = 0


class ProcessStore:
    """All statements about processes on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._primary = Primary(adapter)
        self._sql = load(PACKAGE, "processes", adapter.dialect)
        parameters = parameters_of(adapter.dialect)
        self._time, self._rows = parameters.time, parameters.rows

    # -- what a process writes

    async def beat(
        self,
        process: dict[str, Any] | None,
        counts: Sequence[tuple[MinuteKey, Counts]],
        *,
        id: str,
        now: datetime,
        has_stopped: bool = False,
    ) -> None:
        """Say that the process lives, or has stopped, and what it did, in one transaction."""
        statements: list[Sql] = []
        if process is not None:
            values = {**process, "started_at": self._time(process["started_at"])}
            texts = {name: encode_plain(process[name]) for name in ("types", "kinds")}
            statements.append(
                self._sql["beat"].bind_all({**values, **texts, "id": id, "now": self._time(now)})
            )
        if has_stopped:
            statements.append(self._sql["stop_process"].bind(id=id, now=self._time(now)))
        if counts:
            statements.append(self._record(counts, id, now))
        if statements:
            await self.adapter.batch(statements)

    def _record(self, counts: Sequence[tuple[MinuteKey, Counts]], process: str, now: datetime) -> Sql:
        rows = [
            (
                id,
                self._time(key.minute),
                key.kind,
                key.type,
                count.started,
                count.succeeded,
                count.failed,
                count.retried,
                round(count.busy * 1000),
                round(count.wait * 1000),
            )
            for id, (key, count) in zip(new_ids(len(counts)), counts, strict=True)
        ]
        return self._sql["record"].bind(process=process, now=self._time(now), **self._rows(_RECORDED, rows))

    async def has_due(self, minute: datetime) -> bool:
        """Whether a process has noted how many runs were due in this minute."""
        return await self._primary.fetch_one(self._sql["has_due"].bind(minute=self._time(minute))) is not None

    async def fold(self, before: datetime, now: datetime) -> bool:
        """Fold the minutes of the first hour that was over then; False when there was none."""
        row = await self._primary.fetch_one(self._sql["foldable"].bind(before=self._time(before)))
        if row is None or row[0] is None:
            return False
        hour = instant(row[0]).replace(minute=0)
        values = {
            "hour": self._time(hour),
            "until": self._time(min(hour + HOUR, before)),
            "now": self._time(now),
        }
        names = [name for name in ("fold", "folded") if name in self._sql]
        await self.adapter.batch([self._sql[name].bind(**values) for name in names])
        return True

    async def prune(self, *, processes_before: datetime, stats_before: datetime) -> None:
        """Remove the rows of processes that were not seen since, and of what was done before."""
        await self.adapter.execute(self._sql["prune_processes"].bind(before=self._time(processes_before)))
        await self.adapter.execute(self._sql["prune_stats"].bind(before=self._time(stats_before)))

    # -- what overviews read

    async def rates(self, since: datetime) -> dict[tuple[str, str], Sums]:
        """What was done since then, by kind and type."""
        rows = await self.adapter.fetch(self._sql["rates"].bind(since=self._time(since)))
        return {(row[0], row[1]): _sums(row[2:]) for row in rows}

    async def plot(self, since: datetime, until: datetime) -> list[tuple[datetime, str, Sums]]:
        """What was done in each minute, or hour where it is that long ago, by kind."""
        statement = self._sql["plot"].bind(since=self._time(since), until=self._time(until))
        return [(instant(row[0]), row[1], _sums(row[2:])) for row in await self.adapter.fetch(statement)]

    async def plot_due(self, since: datetime, until: datetime) -> list[tuple[datetime, int, int]]:
        """How many runs were due in each minute, and for how many milliseconds the oldest had been."""
        statement = self._sql["plot_due"].bind(since=self._time(since), until=self._time(until))
        return [(instant(row[0]), int(row[1]), int(row[2])) for row in await self.adapter.fetch(statement)]

    async def running(self, most: int) -> dict[str, int]:
        """How many runs are worked on, by type; at most so many in all."""
        rows = await self.adapter.fetch(self._sql["running"].bind(most=most))
        return {row[0]: row[1] for row in rows}

    async def failing(self, since: datetime, most: int) -> tuple[int, int]:
        """How many runs wait for another attempt, and how many failed since then; each at most so many."""
        row = await self.adapter.fetch_one(self._sql["failing"].bind(since=self._time(since), most=most))
        assert row is not None
        return row[0], row[1]

    async def messages(self, most: int) -> tuple[int, int, datetime | None]:
        """How many messages wait and how many are dead, each at most so many, and since when they wait."""
        row = await self.adapter.fetch_one(self._sql["messages"].bind(most=most))
        assert row is not None
        return row[0], row[1], None if row[2] is None else instant(row[2])

    async def group_holder(self, group: str) -> str | None:
        """The id of the run that is worked on in a group."""
        row = await self._primary.fetch_one(self._sql["group_holder"].bind(group=group))
        return None if row is None else str(row[0])

    async def runs_ahead(
        self, *, type: str, priority: int, run_at: datetime, id: str, now: datetime, most: int
    ) -> int:
        """How many due runs of the type come before this one."""
        values = {"run_at": self._time(run_at), "now": self._time(now), "most": most}
        statement = self._sql["ahead"].bind(type=type, priority=priority, id=id, **values)
        row = await self._primary.fetch_one(statement)
        assert row is not None
        return int(row[0])


def _sums(row: Row) -> Sums:
    return Sums(*(int(value) for value in row))
