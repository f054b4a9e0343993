"""Three servers on one database, whose clocks a test moves by hand.

On PostgreSQL each server is on a machine of its own and the database server has a clock, too: the
function that tells its time is replaced in the test's database. On SQLite all are processes of one machine.
All clocks stand still unless the test moves them, so that it does not matter how long the test takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from maniflex import Run, Server
from maniflex._clock import SystemClock
from maniflex.background.clock import ClockKeeper, ServerClock
from maniflex.background.outbox.message import Message
from maniflex.background.runs.worker import RunWorker
from tests.kit.internals import a_dispatcher
from tests.kit.postgres import execute

HOLD = "hold.v1"
REPORT = "report.v1"
LIVES = 3

SERVER_CLOCK = """
ALTER DATABASE "{name}" SET search_path = public, pg_catalog;
CREATE TABLE server_clock (time timestamptz NOT NULL);
INSERT INTO server_clock VALUES ('{now}');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    'SELECT time FROM public.server_clock';
"""


class OtherTime(SystemClock):
    """The clock of a machine that is hours off."""

    def __init__(self, hours: int) -> None:
        self._off = timedelta(hours=hours)

    def now(self) -> datetime:
        return super().now() + self._off


class Machine(SystemClock):
    """The clocks of a machine: the time they began at, and how far they were moved."""

    def __init__(self, began: datetime | None = None) -> None:
        self.began = began or datetime.now(UTC)
        self.wall = timedelta(0)
        self.passed = timedelta(0)

    def now(self) -> datetime:
        return self.began + self.wall

    def monotonic(self) -> float:
        return self.passed.total_seconds()


class Process:
    """One server: its worker, its scheduler, and what keeps its time."""

    def __init__(self, server: Server, machine: Machine) -> None:
        self.server = server
        self.machine = machine
        self.worker: RunWorker = server.work.worker(concurrency=100)
        self.scheduler = server.schedules.scheduler()
        self.relay = a_dispatcher(server.outbox, 1, 1)
        durable = server._durable
        assert isinstance(durable.keeper, ClockKeeper)
        self.keeper = durable.keeper
        assert isinstance(server.work.clock, ServerClock)
        self.clock = server.work.clock
        self.metrics = durable.metrics

    @property
    def taken_over(self) -> float:
        """How much this process took from others."""
        return self.metrics.value("runs_reclaimed_total")

    async def look(self) -> int:
        """Do what a living process does now and then; how many schedules that fired."""
        await self.worker.rescuer.tick()
        return await self.scheduler.tick()

    async def hold(self) -> None:
        """Begin a run, which lasts as long as the process renews its lease."""
        await self.server.work.submit(HOLD)
        self.worker.begin(await self.worker.claim(1))

    async def renew(self) -> None:
        await self.worker.leases.renew_own()
        await self.relay.lease_keeper.beat(self.server.work.engine.store.adapter)


class World:
    """The processes, the time that passes for all of them, and the runs and messages they hold."""

    def __init__(self, processes: list[Process], url: str) -> None:
        self.processes = processes
        self.machines = list({id(one.machine): one.machine for one in processes}.values())
        self._postgres = url.startswith("postgres")

    async def pass_time(self, delay: timedelta) -> None:
        for machine in self.machines:
            machine.wall += delay
            machine.passed += delay
        await self._move_server(delay)

    async def step(self, delay: timedelta) -> None:
        """Set the clock that is the database's: the server's, or that of the one machine."""
        if self._postgres:
            await self._move_server(delay)
        else:
            self.machines[0].wall += delay

    async def _move_server(self, delay: timedelta) -> None:
        if self._postgres:
            await self.processes[0].server.raw_exec("UPDATE server_clock SET time = time + ?", delay)


@asynccontextmanager
async def a_world(url: str, cron: Callable[[datetime], str] | None = None) -> AsyncIterator[World]:
    """Three servers; each holds runs that never end by themselves, and one schedule is kept by all."""
    name = urlsplit(url).path.strip("/")
    now = datetime.now(UTC)
    if url.startswith("postgres"):
        await execute(url, SERVER_CLOCK.format(name=name, now=now.isoformat()))
    ended = asyncio.Event()
    shared = Machine(now)
    machines = [Machine(now) if url.startswith("postgres") else shared for _ in range(LIVES)]
    try:
        async with AsyncExitStack() as stack:
            processes = []
            for machine in machines:
                server = _server(url, machine, ended, cron)
                await stack.enter_async_context(server.lifespan())
                await server.schedules.declare()
                processes.append(Process(server, machine))
            world = World(processes, url)
            try:
                yield world
            finally:
                ended.set()
                for process in processes:
                    await asyncio.gather(*(attempt.task for attempt in list(process.worker.running)))
    finally:
        if url.startswith("postgres"):
            await execute(url, f'ALTER DATABASE "{name}" RESET search_path')


def _server(
    url: str, machine: Machine, ended: asyncio.Event, cron: Callable[[datetime], str] | None
) -> Server:
    settings: dict[str, Any] = {"pool_size": 2} if url.startswith("postgres") else {}
    server = Server(url, clock=machine, background=False, **settings)

    @server.work.handler(HOLD, max_attempts=100)
    async def hold(run: Run) -> None:
        await ended.wait()

    @server.work.handler(REPORT)
    async def report(run: Run) -> None: ...

    @server.outbox.handler("note")
    async def note(message: Message) -> None: ...

    server.schedules.add("report", cron=(cron or _in_half_an_hour)(machine.now()), run=REPORT)
    return server


def _in_half_an_hour(now: datetime) -> str:
    due = now + timedelta(minutes=30)
    return f"{due.minute} {due.hour} * * *"
