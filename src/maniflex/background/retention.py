"""`server.retention`: removes the records and the versions that their models keep no longer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.scheduled_fields.api import DueField
from maniflex.background.scheduled_fields.observers import OnDelete, Report
from maniflex.background.scheduled_fields.runner import RETENTION, EraseRecords, Runner

Prune = Callable[[Callable[[], bool]], Awaitable[Mapping[str, int]]]  # until it is asked to stop; by model


class RetentionSweeps(DeclaredPart):
    """The rules of retention of one server, carried out; models declare them, and it has no tables."""

    too_early = "the server is not sealed yet; retention needs to know its models"
    is_used = True
    _runner: Runner  # from the moment the server is sealed

    def __init__(self, prune: Prune, erase: EraseRecords) -> None:
        super().__init__()
        self._prune = prune
        self._erase = erase

    async def sweep(
        self, *, until: Callable[[], bool] = lambda: False, on_delete: OnDelete | None = None
    ) -> Report:
        """Remove due records, old versions of histories and old records of audit trails.

        `until` asks between two batches whether to stop. `on_delete` is called for each record that goes.
        """
        environment = self.require_sealed()
        if on_delete is None:
            report = await self._runner.sweep(until=until)
        else:
            runner = Runner(environment, on_delete=on_delete, kind=RETENTION, erase=self._erase)
            report = await runner.sweep(until=until)
        return report.with_deleted(await self._prune(until))

    @property
    def last_report(self) -> tuple[datetime, Report] | None:
        """The last sweep of records of this process and when it began; None before the first."""
        self.require_sealed()
        return self._runner.last_report

    async def due(self, most: int = 10_001) -> list[DueField]:
        """How many records are due now by each rule, none counted beyond `most`."""
        self.require_sealed()
        return [DueField(*row) for row in await self._runner.due(most)]

    def attach(self, environment: Environment) -> None:
        """Take the models of the sealed server; sweeps are possible from here on."""
        super().attach(environment)
        interval = environment.config.retention_interval
        self._runner = Runner(environment, interval=interval, kind=RETENTION, erase=self._erase)

    def services(self) -> Sequence[Service]:
        """The runner, where a model has a rule."""
        return (self._runner,) if self._environment is not None and self._runner.has_targets else ()
