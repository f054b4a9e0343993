"""`server.processes`: the processes of the application, what they did, and why a run waits.

>>> overview = await server.processes.overview()
>>> overview.light, overview.sentence
(<Light.GREEN: 'green'>, 'all work is on time')
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from maniflex._ids import new_id
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.processes.keeper import ProcessKeeper, RequestTotals, write_counts
from maniflex.background.processes.model import WorkProcess, WorkStat
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
from maniflex.background.processes.store import ProcessStore, Sums
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.api import Schedules
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
        kinds = self._outbox.kinds
        return ProcessKeeper(
            self.require_sealed(),
            self.store,
            id=new_id(),
            role=self.role or role,
            services=services,
            kinds=("*",) if kinds is None else kinds,
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
