"""The runner: serves every record whose time has come, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from maniflex._clock import Clock
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.scheduled_fields.observers import OnDelete, OnSetField, Subscribers
from maniflex.background.scheduled_fields.report import Report, Tally
from maniflex.background.scheduled_fields.sweep import IndexSweep, SweepSettings, Target
from maniflex.background.watch import WatchedPart
from maniflex.db.current import current_tx
from maniflex.errors import DatabaseError
from maniflex.model.field import FieldSchedule
from maniflex.model.meta import ModelMeta
from maniflex.sql.scheduled_fields import Place, count_due
from maniflex.sql.scheduled_indexes import schedule_indexes


class Runner:
    """Sweeps every model with scheduled fields; any number of them may run side by side.

    `max_batches` bounds the batches of one sweep for each schedule; without it a sweep ends when
    no record is left that was due at its beginning.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        interval: timedelta | None = None,
        batch: int | None = None,
        max_batches: int | None = None,
        clock: Clock | None = None,
        on_delete: OnDelete | None = None,
        on_set_field: OnSetField | None = None,
        subscribers: Subscribers | None = None,
    ) -> None:
        batch = environment.config.sweep_batch_size if batch is None else batch
        if batch < 1 or (max_batches is not None and max_batches < 1):
            raise ValueError("a sweep needs batches of at least one record, and at least one batch")
        subscribers = subscribers or Subscribers()
        if on_delete is not None:
            subscribers = replace(subscribers, on_delete=[*subscribers.on_delete, on_delete])
        if on_set_field is not None:
            subscribers = replace(subscribers, on_set_field=[*subscribers.on_set_field, on_set_field])
        self._settings = SweepSettings(
            clock or environment.clock, environment.logger, batch, max_batches, subscribers
        )
        self._metrics = environment.metrics
        self._targets = [
            Target(s, index) for s in environment.stores.values() for index in schedule_indexes(s.meta)
        ]
        self._places: dict[Target, Place] = {}
        self._broken: set[Target] = set()
        self._failed: set[Target] = set()
        self.last_report: tuple[datetime, Report] | None = None  # of this process, and when it began
        self._ticker = _SweepLoop(self, interval or environment.config.sweep_interval, self._settings)

    async def start(self) -> None:
        """Sweep now and every `interval` from now on; without scheduled fields, do nothing."""
        if self._targets:
            await self._ticker.start()

    async def stop(self) -> None:
        """Finish the batch at hand, call its hooks and stop."""
        await self._ticker.stop()

    @property
    def loop(self) -> Loop:
        """The loop that ticks, for supervision."""
        return self._ticker

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        return self._ticker.parts_to_watch

    async def sweep(self, *, until: Callable[[], bool] = lambda: False) -> Report:
        """Serve the records that are due now, unless `until` asks to stop between two batches."""
        if any(current_tx(target.store.adapter) is not None for target in self._targets):
            raise DatabaseError("a sweep commits batch by batch; it cannot be part of a transaction")
        tally = Tally()
        now = self._settings.clock.now()
        sweeps = [
            (target, IndexSweep(target, now, self._settings, tally, **self._state_of_last_sweep(target)))
            for target in self._targets
        ]
        going = sweeps
        while going and not until():
            # One batch each in turn: a long backlog of one model does not hold up the others.
            going = [(target, sweep) for target, sweep in going if await sweep.advance()]
        for _, sweep in going:
            sweep.leave()
        self._places.update({target: sweep.resume for target, sweep in sweeps if sweep.resume is not None})
        self._broken = {target for target, sweep in sweeps if sweep.broken}
        self._failed = {target for target, sweep in sweeps if sweep.failed}
        report = tally.report()
        self._count(report)
        self.last_report = now, report
        return report

    async def due(self, most: int) -> list[tuple[ModelMeta, FieldSchedule, int]]:
        """How many records are due by each scheduled field, none counted beyond `most`."""
        now = self._settings.clock.now()
        counts: dict[tuple[ModelMeta, FieldSchedule], int] = {}
        for target in self._targets:
            row = await target.store.adapter.fetch_one(
                count_due(target.store.sql, target.schedule_index, now, most)
            )
            key = target.store.meta, target.schedule_index.schedule
            counts[key] = min(counts.get(key, 0) + (0 if row is None else int(row[0])), most)
        return [(meta, schedule, number) for (meta, schedule), number in counts.items()]

    def _state_of_last_sweep(self, target: Target) -> dict[str, Any]:
        """Where the next sweep of a target begins, and whether its error is in the log already."""
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


class _SweepLoop(Loop):
    name = "scheduled fields"

    def __init__(self, runner: Runner, interval: timedelta, settings: SweepSettings) -> None:
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
