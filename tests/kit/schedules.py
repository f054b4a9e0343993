"""Schedules on a database of their own, and as many schedulers as a test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from maniflex import Server
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import ScheduleFiring
from maniflex.background.schedules.scheduler import Scheduler
from maniflex.testing.clock import FakeClock
from tests.kit.internals import metrics_of


class Bench:
    """A started server, its schedules and one scheduler."""

    def __init__(self, server: Server, clock: FakeClock) -> None:
        self.server = server
        self.schedules = server.schedules
        self.metrics = metrics_of(server)
        self.clock = clock
        self.scheduler: Scheduler = server.schedules.scheduler()

    async def firings(self, name: str, outcome: str = "fired") -> list[ScheduleFiring]:
        """The firings of a schedule, the earliest first."""
        filters = [("schedule_name", "eq", name), ("outcome", "eq", outcome)]
        return await self.server.db(ScheduleFiring).list(filters, sorts=["due_at"])

    async def runs(self, type: str) -> list[WorkflowRun]:
        return await self.server.db(WorkflowRun).list([("type", "eq", type)], sorts=["id"])


@asynccontextmanager
async def a_bench(
    url: str,
    declare: Callable[[Schedules], object] = Schedules.enable,
    *,
    clock: FakeClock | None = None,
    handlers: Callable[[Server], object] = lambda server: None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A server whose schedules `declare` has filled; nothing runs by itself."""
    clock = clock or FakeClock()
    server = Server(url, clock=clock, background=False, **settings)
    handlers(server)
    declare(server.schedules)
    async with server.lifespan():
        await server.schedules.declare()
        yield Bench(server, clock)
