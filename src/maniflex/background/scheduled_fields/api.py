"""`server.scheduled`: hooks and observers while declaring, sweeps once the server is sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from maniflex._service import Service
from maniflex.background.environment import Environment
from maniflex.background.scheduled_fields.observers import Observer, OnDelete, OnSetField, Subscribers
from maniflex.background.scheduled_fields.report import Report
from maniflex.background.scheduled_fields.runner import Runner
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.scheduled_field import schedules
from maniflex.sql.statement import Dialect, Sql

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work


class Scheduled:
    """Scheduled fields of one server."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._on_delete: list[OnDelete] = []
        self._on_set_field: list[OnSetField] = []
        self._observers: list[Observer] = []
        self._by_runs = False
        self._environment: Environment | None = None
        self._runner: Runner | None = None

    def on_delete(self, hook: OnDelete) -> OnDelete:
        """Call `hook(model, id)` after a scheduled delete was committed."""
        self._on_delete.append(hook)
        return hook

    def on_set_field(self, hook: OnSetField) -> OnSetField:
        """Call `hook(model, id, field, to)` after a scheduled change was committed."""
        self._on_set_field.append(hook)
        return hook

    def observe(self, observer: Observer) -> Observer:
        """Call `observer(tx, swept)` inside the transaction of each batch; if it raises, nothing happened."""
        self._observers.append(observer)
        return observer

    def handler(self, type: str = "scheduled.sweep", **options: Any) -> None:
        """Sweep when a run of this type asks for it, and no longer by the clock of each process."""
        self._by_runs = True

        async def sweep(run: Any) -> dict[str, Any]:
            return (await self.sweep()).as_json()

        self._work.handler(type, **options)(sweep)

    def runner(self, **settings: Any) -> Runner:
        """A runner of your own, with the hooks declared here and those given."""
        if self._environment is None:
            raise DeclarationError("the server is not sealed yet; a runner needs to know its models")
        subscribers = Subscribers(self._on_delete, self._on_set_field, self._observers)
        return Runner(self._environment, subscribers=subscribers, **settings)

    async def sweep(self) -> Report:
        """Serve the records that are due now."""
        if self._runner is None:
            raise DeclarationError("the server is not sealed yet; there is nothing to sweep")
        return await self._runner.sweep()

    def models(self) -> Sequence[type[Model]]:
        """Tables of its own: none."""
        return ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        """Statements of its own: none, the indexes belong to the models."""
        return ()

    def problems(self) -> list[str]:
        """A sentence for each hook that cannot be called."""
        hooks: list[Any] = [*self._on_delete, *self._on_set_field, *self._observers]
        return [f"scheduled: {hook!r} is not callable" for hook in hooks if not callable(hook)]

    def attach(self, environment: Environment) -> None:
        """Take the models of the sealed server; sweeps are possible from here on."""
        self._environment = environment
        self._runner = self.runner()

    def services(self) -> Sequence[Service]:
        """The runner, where a model has a schedule and no run asks for the sweeps."""
        if self._environment is None or self._runner is None or self._by_runs:
            return ()
        has_schedules = any(schedules(store.meta) for store in self._environment.stores.values())
        return (self._runner,) if has_schedules else ()
