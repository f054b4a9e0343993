"""`server.processes`: the processes of the application, what they did, and why a run waits.

>>> overview = await server.processes.overview()
>>> overview.light, overview.sentence
(<Light.GREEN: 'green'>, 'all work is on time')
"""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

from maniflex._ids import new_id
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.loop import Loop
from maniflex.background.metrics import Counts, MinuteKey
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.dispatcher import OutboxWorker
from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.processes.overview import (
    MOST,
    MessageFacts,
    Overview,
    WaitFacts,
    describe_message_wait,
    describe_wait,
    needs_facts,
    read_overview,
)
from maniflex.background.processes.store import BEAT, ProcessStore, Sums, WorkProcess, WorkStat
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.worker import RunWorker
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.scheduler import Scheduler
from maniflex.db.current import reading
from maniflex.db.records import Records
from maniflex.model.base import Model

MOST_PROCESSES = 1000


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """What was done of one kind in an interval that begins at this moment."""

    at: datetime
    kind: str  # run, message or request
    sums: Sums


@dataclass(frozen=True, slots=True)
class DuePoint:
    """How many runs were due in a minute, and for how long the oldest had been."""

    at: datetime
    due: int
    oldest_ms: int


class Processes(DeclaredPart):
    """The processes of one application, and the numbers of what they do."""

    too_early = "processes are known once the server is sealed"
    not_used = "no durable work is in use, so no table has the processes: declare a handler, or call enable()"
    store: ProcessStore  # from the moment the server is sealed

    def __init__(self, work: Work, outbox: Outbox, schedules: Schedules) -> None:
        super().__init__()
        self._work, self._outbox, self._schedules = work, outbox, schedules
        self.role: str | None = None  # as a command names this process
        self.requests: RequestTotals | None = None

    @property
    def is_used(self) -> bool:
        return self._work.is_used or self._outbox.is_used or self._schedules.is_used

    def models(self) -> Sequence[type[Model]]:
        return (WorkProcess, WorkStat) if self.is_used else ()

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self.store = ProcessStore(environment.adapter)

    def keeper(self, services: Sequence[Service], role: str) -> ProcessKeeper | None:
        """The service that keeps the row of this process, whose other services are these."""
        if not self.is_used:
            return None
        return ProcessKeeper(
            self.require_sealed(),
            self.store,
            id=new_id(),
            role=self.role or role,
            services=services,
            counts_runs=self._work.is_used,
            requests=self.requests,
        )

    async def write_counts(self) -> None:
        """Write what this process did and no keeper wrote; for processes that end at once."""
        if self.is_used and self._environment is not None:
            await write_counts(self.store, self._environment, new_id())

    # -- asking

    def now(self) -> datetime:
        """The time by which processes are alive or late."""
        return self.require_sealed().clock.now()

    async def list(self) -> builtins.list[WorkProcess]:
        """The processes that were seen within the last day, the latest first."""
        environment = self.require_sealed()
        records = Records[WorkProcess](environment.stores[WorkProcess], reading(environment.adapter))
        return await records.list(sorts="seen_at:desc", limit=MOST_PROCESSES)

    async def overview(self) -> Overview:
        """The numbers of durable work now, and whether all is well."""
        environment = self.require_sealed()
        return await read_overview(
            self.store,
            await self.list(),
            environment.clock.now(),
            runs=environment.runs.store if self._work.is_used else None,
            schedules=self._schedules.store if self._schedules.is_used else None,
            has_outbox=self._outbox.is_used,
        )

    async def plot(
        self, over: timedelta, every: timedelta = timedelta(minutes=1)
    ) -> builtins.list[PlotPoint]:
        """What was done within `over`, in intervals of `every`, by kind; intervals without work are left out.

        The last interval is the one that goes on. Hours that are over for two days are one point each.
        """
        now = self.require_sealed().clock.now()
        since = floor(now - over, every)
        sums: dict[tuple[datetime, str], Sums] = {}
        for minute, kind, more in await self.store.plot(since, now):
            key = floor(minute, every), kind
            before = sums.get(key, Sums())
            sums[key] = Sums(*(a + b for a, b in zip(before, more, strict=True)))
        return [PlotPoint(at, kind, one) for (at, kind), one in sorted(sums.items())]

    async def plot_due(self, over: timedelta) -> builtins.list[DuePoint]:
        """How many runs were due in each minute within `over` that had any."""
        now = self.require_sealed().clock.now()
        return [DuePoint(*row) for row in await self.store.plot_due(floor(now - over), now)]

    async def why(self, run: WorkflowRun, *, names_others: bool = True) -> str:
        """Why the run is not running, in one sentence; without `names_others`, for one tenant to read."""
        now = self.require_sealed().clock.now()
        if not needs_facts(run, now):
            return describe_wait(run, WaitFacts(now, names_others=names_others))
        holder = None if run.group_key is None else await self.store.group_holder(run.group_key)
        ahead = await self.store.runs_ahead(
            type=run.type, priority=run.priority, run_at=run.run_at, id=run.id, now=now, most=MOST + 1
        )
        return describe_wait(run, WaitFacts(now, await self.list(), holder, ahead, names_others))

    async def why_not_delivered(self, message: OutboxMessage) -> str:
        """Why the message is not delivered, in one sentence."""
        environment = self.require_sealed()
        ahead = None
        if message.status == MessageStatus.PENDING and message.key is not None:
            records = Records[OutboxMessage](environment.stores[OutboxMessage])
            first = await records.list({"key": message.key, "status": "pending"}, "seq", limit=1)
            ahead = first[0].id if first else None
        facts = MessageFacts(environment.clock.now(), await self.list(), ahead)
        return describe_message_wait(message, facts)


def floor(moment: datetime, every: timedelta = timedelta(minutes=1)) -> datetime:
    """The beginning of the interval that the moment is in; intervals are counted from midnight UTC."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // every * every


# Keeps the row of this process, and writes what it did: one transaction every ten seconds.


MINUTES_KEPT = timedelta(hours=48)  # then they are folded to hours
STATS_KEPT = timedelta(days=14)
PROCESSES_KEPT = timedelta(days=1)
CLEANS_EVERY = timedelta(hours=1)
MOST_DUE = 10_001  # of a type and priority; more are shown as "10,000+"
LAG_EVERY = 1.0  # seconds

RequestTotals = Callable[
    [], tuple[int, int, float]
]  # requests so far, those with an error, and their seconds


class ProcessKeeper:
    """A service: while it is started, the process has a living row. Its failures make no process unready."""

    def __init__(
        self,
        environment: Environment,
        store: ProcessStore,
        *,
        id: str,
        role: str,
        services: Sequence[Service],
        counts_runs: bool,
        requests: RequestTotals | None = None,
    ) -> None:
        self._environment = environment
        self._store = store
        self._id = id
        self._services = services
        self._workers = [one for one in services if isinstance(one, RunWorker)]
        self._counts_runs = counts_runs
        self._requests = requests
        self._requests_before = (0, 0, 0.0)
        self._lag = LoopLag()
        self._cleaned_at: datetime | None = None
        self._loop = _Beats(self.beat, environment)
        self._process: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "role": role,
            "version": version("maniflex"),
            "types": sorted({name for worker in self._workers for name in worker.types.names()}),
            "kinds": sorted(
                {kind for one in services if isinstance(one, OutboxWorker) for kind in one.kinds}
            ),
            "schedules": any(isinstance(one, Scheduler) for one in services),
            "concurrency": sum(worker.concurrency for worker in self._workers),
        }

    async def start(self) -> None:
        self._process |= {"pid": os.getpid(), "started_at": self._environment.clock.now()}
        self._lag.start()
        await self._loop.start()

    async def stop(self) -> None:
        """Note that the process has stopped, and the rest of what it did."""
        self._lag.stop()
        await self._loop.stop()
        await self.beat(has_stopped=True)

    async def beat(self, *, has_stopped: bool = False) -> None:
        """Write the row of the process and the counts that rows."""
        now = self._environment.clock.now()
        minutes = self._environment.metrics.minutes
        self._count_requests(now)
        if not has_stopped:
            await self._count_due(now)
        running = sum(worker.busy for worker in self._workers)
        process = {**self._process, "running": running, "lag_ms": self._lag.take_worst()}
        rows = minutes.take_changed()
        try:
            await self._store.beat(process, rows, id=self._id, now=now, has_stopped=has_stopped)
        except BaseException:
            minutes.put_back(key for key, _ in rows)
            raise
        if not has_stopped:
            await self._clean(now)

    def _count_requests(self, now: datetime) -> None:
        if self._requests is None:
            return
        before, self._requests_before = self._requests_before, self._requests()
        total, errors, seconds = (
            after - earlier for after, earlier in zip(self._requests_before, before, strict=True)
        )
        if total:
            counts = self._environment.metrics.minutes.of(now, "request", "")
            counts.started += int(total)
            counts.failed += int(errors)
            counts.succeeded += int(total - errors)
            counts.busy += seconds

    async def _count_due(self, now: datetime) -> None:
        """Note how many runs are due, once a minute and by the first process that comes to it."""
        minute = now.replace(second=0, microsecond=0)
        if not self._counts_runs or await self._store.has_due(minute):
            return
        for type, number, oldest in await self._environment.runs.store.depth(now, MOST_DUE):
            counts = self._environment.metrics.minutes.of(now, "due", type)
            counts.started, counts.wait = number, (now - oldest).total_seconds()

    async def _clean(self, now: datetime) -> None:
        if self._cleaned_at is not None and now - self._cleaned_at < CLEANS_EVERY:
            return
        while await self._store.fold(now - MINUTES_KEPT, now):
            pass
        await self._store.prune(processes_before=now - PROCESSES_KEPT, stats_before=now - STATS_KEPT)
        self._cleaned_at = now


class _Beats(Loop):
    name = "maniflex-process"

    def __init__(self, beat: Callable[[], Any], environment: Environment) -> None:
        super().__init__(environment.clock, BEAT, environment.logger, jitter=0.05)
        self._beat = beat

    async def tick(self) -> bool:
        await self._beat()
        return False


class LoopLag:
    """How late the event loop is: once a second it asks to be called, and sees when it is."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ask(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def take_worst(self) -> int:
        """The worst since the last time, in milliseconds."""
        worst, self._worst = self._worst, 0.0
        return round(worst * 1000)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + LAG_EVERY

        def on_time() -> None:
            self._worst = max(self._worst, loop.time() - due)
            self._ask(loop)

        self._handle = loop.call_at(due, on_time)


async def write_counts(store: ProcessStore, environment: Environment, id: str) -> None:
    """Write what a process did that has no row, such as one that drains."""
    minutes = environment.metrics.minutes
    rows: list[tuple[MinuteKey, Counts]] = minutes.take_changed()
    if rows:
        await store.beat(None, rows, id=id, now=environment.clock.now())
