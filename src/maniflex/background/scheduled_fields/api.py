"""`server.scheduled`: hooks and observers while declaring, sweeps once the server is sealed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from maniflex._clock import Clock
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.scheduled_fields.observers import Observer, OnDelete, OnSetField, Report, Subscribers
from maniflex.background.scheduled_fields.runner import Runner
from maniflex.model.field import FieldSchedule, schedules
from maniflex.model.meta import ModelMeta

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work


class DueField(NamedTuple):
    """A scheduled field of a model, and how many records wait to be served by it."""

    model: ModelMeta
    schedule: FieldSchedule
    due: int


class Scheduled(DeclaredPart):
    """Scheduled fields of one server; they have no tables of their own, and models may have them or not."""

    too_early = "the server is not sealed yet; a sweep needs to know its models"
    is_used = True
    _runner: Runner  # from the moment the server is sealed

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._on_delete: list[OnDelete] = []
        self._on_set_field: list[OnSetField] = []
        self._observers: list[Observer] = []
        self._by_runs = False

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

    def runner(
        self,
        *,
        interval: timedelta | None = None,
        batch: int | None = None,
        max_batches: int | None = None,
        clock: Clock | None = None,
        on_delete: OnDelete | None = None,
        on_set_field: OnSetField | None = None,
    ) -> Runner:
        """A runner of your own, with the hooks declared here and those given."""
        return Runner(
            self.require_sealed(),
            interval=interval,
            batch=batch,
            max_batches=max_batches,
            clock=clock,
            on_delete=on_delete,
            on_set_field=on_set_field,
            subscribers=Subscribers(self._on_delete, self._on_set_field, self._observers),
        )

    async def sweep(self) -> Report:
        """Serve the records that are due now."""
        self.require_sealed()
        return await self._runner.sweep()

    @property
    def has_fields(self) -> bool:
        """Whether any model has a scheduled field."""
        return any(schedules(store.meta) for store in self.require_sealed().stores.values())

    @property
    def last_report(self) -> tuple[datetime, Report] | None:
        """The last sweep of this process and when it began; None before the first."""
        self.require_sealed()
        return self._runner.last_report

    async def due(self, most: int = 10_001) -> list[DueField]:
        """How many records are due now by each scheduled field, none counted beyond `most`."""
        self.require_sealed()
        return [DueField(*row) for row in await self._runner.due(most)]

    def problems(self) -> list[str]:
        """A sentence for each hook that cannot be called."""
        hooks: list[Any] = [*self._on_delete, *self._on_set_field, *self._observers]
        return [f"scheduled: {hook!r} is not callable" for hook in hooks if not callable(hook)]

    def attach(self, environment: Environment) -> None:
        """Take the models of the sealed server; sweeps are possible from here on."""
        super().attach(environment)
        self._runner = self.runner()

    def services(self) -> Sequence[Service]:
        """The runner, where a model has a schedule and no run asks for the sweeps."""
        if self._environment is None or self._by_runs:
            return ()
        return (self._runner,) if self.has_fields else ()
