"""The durable parts of a server, declared together and brought to life together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from maniflex._logging import guarded
from maniflex._service import Service
from maniflex.background.clock import HOLD_OFF, ClockKeeper, ServerClock, shared_clock
from maniflex.background.jobs.client import Jobs
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.outbox import Outbox
from maniflex.background.parts import Parts
from maniflex.background.repair import Repair, Repairer, repair_messages, repair_runs, repair_schedules
from maniflex.background.runs.client import Work
from maniflex.background.scheduled.facade import Scheduled
from maniflex.background.schedules.schedules import Schedules
from maniflex.config import Config
from maniflex.control.actions import ActionCaller, open_to_clients, schedulable, schedulable_problems
from maniflex.control.face import Face
from maniflex.control.jobs import JobFace
from maniflex.control.outbox import OutboxFace
from maniflex.control.runs import RunFace
from maniflex.control.schedules import ScheduleFace
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.model.registry import Registry
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.runtime import Runtime
from maniflex.sql.statement import Dialect, Sql


class Part(Protocol):
    """One kind of durable work."""

    def models(self) -> Sequence[type[Model]]:
        """Its tables; none when the application does not use it."""

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        """What its tables need beyond what a model declares."""

    def problems(self) -> list[str]:
        """What is declared wrongly."""

    def attach(self, parts: Parts) -> None:
        """The server is sealed: here is its database."""

    def services(self) -> Sequence[Service]:
        """What works in the background of a serving process."""


class Durable:
    """All durable parts."""

    def __init__(self, config: Config) -> None:
        self.metrics = Metrics()
        self.work = Work()
        self.outbox = Outbox()
        self.schedules = Schedules(self.work, config)
        self.scheduled = Scheduled(self.work)
        self.jobs = Jobs(self.work, self.schedules)
        self.faces: tuple[Face, ...] = (
            RunFace(self.work),
            OutboxFace(self.outbox),
            ScheduleFace(self.schedules),
            JobFace(self.jobs),
        )
        self.keeper: ClockKeeper | None = None
        self.repairer: Repairer | None = None
        self._registered: set[type[Model]] = set()
        self._action_problems: list[str] = []

    def _all(self) -> Iterator[Part]:
        yield from (self.work, self.outbox, self.schedules, self.scheduled, self.jobs)

    def register(self, registry: Registry, actions: Sequence[Action]) -> None:
        """Register the tables of what is in use, once; `actions` are those a schedule can call."""
        self.schedules.know_actions(schedulable(actions), open_to_clients(actions))
        self._action_problems = schedulable_problems(actions)
        wanted = [model for part in self._all() for model in part.models()]
        missing = [model for model in wanted if model not in self._registered]
        if missing:
            options = {model: given for face in self.faces for model, given in face.options().items()}
            for model in missing:
                registry.register(model, *([options[model]] if model in options else []))
            self._registered.update(missing)

    @property
    def tables(self) -> frozenset[type[Model]]:
        """The models that are registered."""
        return frozenset(self._registered)

    def problems(self) -> list[str]:
        return [*self._action_problems, *(problem for part in self._all() for problem in part.problems())]

    def schema(self, dialect: Dialect) -> list[Sql]:
        return [sql for part in self._all() for sql in part.schema(dialect)]

    def attach(self, runtime: Runtime, endpoints: Sequence[Endpoint]) -> None:
        """The server is sealed: bring the parts to its database."""
        beat = runtime.config.work_lease / 3
        clock = shared_clock(runtime.clock, HOLD_OFF + beat)
        logger = guarded(runtime.logger)
        sealed = (runtime.adapter, clock, runtime.config, logger, runtime.stores)
        parts = Parts(*sealed, self.work, self.metrics)
        self.keeper = ClockKeeper(clock, runtime.adapter, logger) if isinstance(clock, ServerClock) else None
        self.repairer = Repairer(parts, list(self._repairs(parts)))
        self.schedules.call_actions(ActionCaller(runtime, endpoints))
        for part in self._all():
            part.attach(parts)

    def _repairs(self, parts: Parts) -> Iterator[tuple[str, Repair]]:
        if len(self.work.handlers):
            yield "runs", repair_runs(parts)
        if self.outbox.used:
            yield "messages", repair_messages(parts)
        if self.schedules.used:
            yield "schedules", repair_schedules(parts)

    def services(self) -> list[Service]:
        """Everything that works in the background of a serving process."""
        return [service for part in self._all() for service in part.services()]

    async def close(self) -> None:
        """Let go of what is not the database's: a queue elsewhere keeps connections of its own."""
        await self.jobs.close()

    async def tell_time(self) -> None:
        """Learn the database's time once, for a process that does no more than submit or sweep."""
        if self.keeper is not None and self._registered:
            await self.keeper.tick()

    def on_time(self, services: Sequence[Service]) -> list[Service]:
        """The services behind those that tell them the time and correct impossible ones."""
        helpers = (self.keeper, self.repairer) if services else ()
        return [*(helper for helper in helpers if helper is not None), *services]
