"""Keeps the row of this process, and writes what it did: one transaction every ten seconds."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

from maniflex._service import Service
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.metrics import Counts, MinuteKey
from maniflex.background.outbox.worker import OutboxWorker
from maniflex.background.processes.model import BEAT
from maniflex.background.processes.store import ProcessStore
from maniflex.background.runs.worker import RunWorker
from maniflex.background.schedules.scheduler import Scheduler

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
        kinds: Sequence[str],
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
            "kinds": list(kinds) if any(isinstance(one, OutboxWorker) for one in services) else [],
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
