"""The runner: serves every record whose time has come, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from maniflex._clock import Clock
from maniflex.background.loop import Loop
from maniflex.background.parts import Parts
from maniflex.background.scheduled.observers import OnDelete, OnSetField, Told
from maniflex.background.scheduled.report import Report, Tally
from maniflex.background.scheduled.sweep import LaneSweep, Settings, Target
from maniflex.background.watch import Watched
from maniflex.db.current import current_tx
from maniflex.errors import DatabaseError
from maniflex.sql.due import Place
from maniflex.sql.waiting import lanes


class Runner:
    """Sweeps every model with scheduled fields; any number of them may run side by side.

    `max_batches` bounds what one sweep does for each schedule; without it a sweep ends when
    nothing that was due at its beginning is left.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        interval: timedelta | None = None,
        batch: int | None = None,
        max_batches: int | None = None,
        clock: Clock | None = None,
        on_delete: OnDelete | None = None,
        on_set_field: OnSetField | None = None,
        told: Told | None = None,
    ) -> None:
        batch = parts.config.sweep_batch_size if batch is None else batch
        if batch < 1 or (max_batches is not None and max_batches < 1):
            raise ValueError("a sweep needs batches of at least one record, and at least one batch")
        told = told or Told()
        if on_delete is not None:
            told = replace(told, on_delete=[*told.on_delete, on_delete])
        if on_set_field is not None:
            told = replace(told, on_set_field=[*told.on_set_field, on_set_field])
        self._settings = Settings(clock or parts.clock, parts.logger, batch, max_batches, told)
        self._metrics = parts.metrics
        self._targets = [Target(s, lane) for s in parts.stores.values() for lane in lanes(s.meta)]
        self._places: dict[Target, Place] = {}
        self._broken: set[Target] = set()
        self._failed: set[Target] = set()
        self._ticker = _Ticker(self, interval or parts.config.sweep_interval, self._settings)

    async def start(self) -> None:
        """Sweep now and every `interval` from now on; without scheduled fields, do nothing."""
        if self._targets:
            await self._ticker.start()

    async def stop(self) -> None:
        """Finish the batch at hand, call its hooks and stop."""
        await self._ticker.stop()

    @property
    def loop(self) -> Loop:
        """What ticks, for those who watch over it."""
        return self._ticker

    @property
    def parts_to_watch(self) -> Sequence[Watched]:
        return self._ticker.parts_to_watch

    async def sweep(self, *, until: Callable[[], bool] = lambda: False) -> Report:
        """Serve what is due now, unless `until` asks to stop between two batches."""
        if any(current_tx(target.store.adapter) is not None for target in self._targets):
            raise DatabaseError("a sweep commits batch by batch; it cannot be part of a transaction")
        tally = Tally()
        now = self._settings.clock.now()
        sweeps = [
            (target, LaneSweep(target, now, self._settings, tally, **self._known(target)))
            for target in self._targets
        ]
        going = sweeps
        while going and not until():
            # One batch each in turn: a long backlog of one model does not hold up the others.
            going = [(target, lane) for target, lane in going if await lane.advance()]
        for _, lane in going:
            lane.leave()
        self._places.update({target: lane.resume for target, lane in sweeps if lane.resume is not None})
        self._broken = {target for target, lane in sweeps if lane.broken}
        self._failed = {target for target, lane in sweeps if lane.failed}
        report = tally.report()
        self._count(report)
        return report

    def _known(self, target: Target) -> dict[str, Any]:
        """What the last sweep left for the next."""
        return {"start": self._places.pop(target, None), "quiet": target in self._broken | self._failed}

    @property
    def broken(self) -> bool:
        """Whether the last sweep came to nothing because every part of it was stopped by an error."""
        return bool(self._targets) and len(self._broken) == len(self._targets)

    def _count(self, report: Report) -> None:
        for model, part in report.per_model.items():
            for name in ("deleted", "updated", "skipped", "failed"):
                if getattr(part, name):
                    self._metrics.add(f"scheduled_{name}_total", getattr(part, name), model=model)


class _Ticker(Loop):
    name = "scheduled fields"

    def __init__(self, runner: Runner, interval: timedelta, settings: Settings) -> None:
        super().__init__(settings.clock, interval, settings.logger)
        self._runner = runner

    async def tick(self) -> bool:
        report = await self._runner.sweep(until=lambda: self.stopping)
        if report.changed or report.failed:
            self.logger.info(
                "scheduled fields: deleted %d, updated %d, skipped %d, failed %d",
                *(report.deleted, report.updated, report.skipped, report.failed),
            )
        if self._runner.broken:
            raise DatabaseError(report.errors[0].message)
        return report.truncated and report.changed > 0
