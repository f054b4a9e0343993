"""The runner: serves every record whose time has come, by a field of its own or by the rules of its model."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from maniflex._caller import Caller, Source, speak_as
from maniflex._clock import Clock
from maniflex._fence import Fence
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop, WatchedPart
from maniflex.background.scheduled_fields.observers import (
    Failure,
    Observer,
    OnDelete,
    OnSetField,
    Report,
    Subscribers,
    SweepEvent,
    Tally,
)
from maniflex.db.cascade import remove_all, undeletable_ids
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.db.write_seam import ChangeKind
from maniflex.errors import (
    ConstraintViolation,
    DatabaseError,
    DeleteRestricted,
    ForeignKeyViolation,
    RequestError,
    TransactionError,
)
from maniflex.model.field import FieldSchedule, ScheduledAction
from maniflex.model.meta import ModelMeta
from maniflex.sql import scheduled_fields
from maniflex.sql.scheduled_fields import Place, count_due
from maniflex.sql.scheduled_indexes import ScheduleIndex, retention_indexes, schedule_indexes
from maniflex.sql.statement import Sql

EraseRecords = Callable[[Store, Sequence[str], Tx], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SweepKind:
    """Which records a sweep is about, and how its changes are called."""

    name: str
    source: Source
    counter: Callable[[str], str]  # the name of the number of records that were deleted, skipped, …
    indexes: Callable[[ModelMeta], Iterable[ScheduleIndex]]


SCHEDULED_FIELDS = SweepKind(
    "scheduled fields", Source.SWEEP, lambda what: f"scheduled_{what}_total", schedule_indexes
)
RETENTION = SweepKind(
    "retention", Source.RETENTION, lambda what: f"retention_{what}_total", retention_indexes
)


class Runner:
    """Sweeps every model with scheduled fields, or with rules of retention; any number may run side by side.

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
        kind: SweepKind = SCHEDULED_FIELDS,
        erase: EraseRecords | None = None,
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
            clock or environment.clock,
            environment.logger,
            batch,
            max_batches,
            subscribers,
            kind.source,
            erase,
        )
        self._kind = kind
        self._metrics = environment.metrics
        self._targets = [
            Target(s, index) for s in environment.stores.values() for index in kind.indexes(s.meta)
        ]
        self._places: dict[Target, Place] = {}
        self._broken: set[Target] = set()
        self._failed: set[Target] = set()
        self.last_report: tuple[datetime, Report] | None = None  # of this process, and when it began
        self._ticker = _SweepLoop(
            self, kind.name, interval or environment.config.sweep_interval, self._settings
        )

    @property
    def has_targets(self) -> bool:
        """Whether any model has records that it might serve."""
        return bool(self._targets)

    async def start(self) -> None:
        """Sweep now and every `interval` from now on; with nothing to serve, do nothing."""
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
                    self._metrics.add(self._kind.counter(name), getattr(part, name), model=model)


class _SweepLoop(Loop):
    def __init__(self, runner: Runner, name: str, interval: timedelta, settings: SweepSettings) -> None:
        self.name = name
        super().__init__(settings.clock, interval, settings.logger)
        self._runner = runner

    async def tick(self) -> bool:
        report = await self._runner.sweep(until=lambda: self.stopping)
        if report.changed or report.failed:
            self.logger.info(
                "%s: deleted %d, updated %d, skipped %d, failed %d",
                self.name,
                *(report.deleted, report.updated, report.skipped, report.failed),
            )
        if self._runner.broken:
            raise DatabaseError(report.errors[0].message)
        return report.truncated and report.changed > 0


# One index of one schedule, swept batch by batch.
#
# A batch is one transaction: the due rows are locked, changed and shown to the observers. Where a record
# refuses (others refer to it, a constraint holds, an observer raises), the batch is tried again in parts,
# so that the record is left alone and its neighbours are not. Hooks come after the commit.


REFUSALS = (DeleteRestricted, ConstraintViolation, ForeignKeyViolation)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """An index of a schedule and the store of its rows."""

    store: Store
    schedule_index: ScheduleIndex

    @property
    def model(self) -> str:
        return self.store.meta.name

    @property
    def field(self) -> str:
        return self.schedule_index.schedule.time


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The settings all indexes of a sweep share."""

    clock: Clock
    logger: logging.Logger
    batch: int
    most: int | None  # batches per index
    subscribers: Subscribers
    source: Source
    erase: EraseRecords | None = None  # for rules that erase


class IndexSweep:
    """The rows of one index during one sweep, which is about the rows that were due when it began."""

    def __init__(
        self,
        target: Target,
        now: datetime,
        settings: SweepSettings,
        tally: Tally,
        *,
        start: scheduled_fields.Place | None = None,
        quiet: bool = False,
    ) -> None:
        self.resume: scheduled_fields.Place | None = None  # where the next sweep had better begin
        self.broken = False  # whether it was stopped by an error
        self.failed = False  # whether records were left alone because of an error
        self._quiet = quiet  # about both, which are in the log already
        self._place = self._start = start
        self._target = target
        self._store, self._schedule_index = target.store, target.schedule_index
        self._now = now
        self._settings = settings
        self._tally = tally
        self._counts = tally.of(target.model)
        self._batches = 0
        self._whole = bool(settings.subscribers.observers) or target.store.seam.needs_rows
        self._skipped = self._logged = False

    async def advance(self) -> bool:
        """Serve one batch; whether there may be another."""
        try:
            return await self._batch()
        except Exception as error:
            self.broken = True
            self._fail(None, error, "the sweep of %s.%s was stopped", quiet=self._quiet)
            return False

    def leave(self) -> None:
        """Stop before the last batch: there may be more due rows."""
        self._counts["truncated"] = True

    async def _batch(self) -> bool:
        self._batches += 1
        self._now = min(self._now, self._settings.clock.now())  # a clock that was set back was wrong before
        with speak_as(Caller(source=self._settings.source)):
            due_rows, changed_ids = await self._serve()
        if due_rows:
            self._place = self._key(due_rows[-1])
        await self._tell(changed_ids)
        full = len(due_rows) == self._settings.batch
        useless = self.failed and not changed_ids  # likely so for every record: go on behind them next time
        again = full and not useless and self._batches != self._settings.most
        if not again:
            await self._end(full)
        return again

    async def _serve(self) -> tuple[list[Row], list[str]]:
        """The rows that were found due, and the ids of those that were changed."""
        due_rows: list[Row] = []
        try:
            async with transaction(self._store.adapter) as tx:
                due_rows = await tx.fetch(self._take(self._place, self._settings.batch))
                return due_rows, await self._apply(tx, due_rows)
        except Exception as error:
            if not due_rows or _is_transient(error):
                raise
            return due_rows, await self._in_parts([self._key(row)[-1] for row in due_rows], error)

    async def _end(self, full: bool) -> None:
        """See whether rows are left: behind the last batch, or before where the sweep began."""
        if not full and self._start is None:
            return
        async with transaction(self._store.adapter) as tx:
            has_more = bool(await tx.fetch(self._take(self._place if full else None, 1)))
        self._counts["truncated"] = self._counts["truncated"] or has_more
        if full and has_more and self._skipped:  # what was skipped stays due and must not block the rest
            self.resume = self._place

    async def _in_parts(self, ids: Sequence[str], error: Exception) -> list[str]:
        """Serve the records that can be served, apart from those that refuse."""
        refused_ids: set[str] = set()
        if self._schedule_index.schedule.action is not ScheduledAction.SET_FIELD and isinstance(
            error, REFUSALS
        ):
            async with transaction(self._store.adapter) as tx:
                refused_ids = await undeletable_ids(self._store, ids, tx)
        for id in ids:
            if id in refused_ids:
                self._skip(id, DeleteRestricted())
        half = len(ids) // 2
        parts = [[id for id in ids if id not in refused_ids]] if refused_ids else [ids[:half], ids[half:]]
        return [id for part in parts if part for id in await self._again(part)]

    async def _again(self, ids: Sequence[str]) -> list[str]:
        try:
            async with transaction(self._store.adapter) as tx:
                statement = scheduled_fields.take_again(
                    self._store.sql, self._schedule_index, self._now, ids, whole=self._whole
                )
                return await self._apply(tx, await tx.fetch(statement))
        except Exception as error:
            if _is_transient(error):
                raise
            if len(ids) > 1:
                return await self._in_parts(ids, error)
            self._skip(ids[0], error)
            return []

    async def _apply(self, tx: Tx, rows: Sequence[Row]) -> list[str]:
        """Change locked rows and show them to the observers; the ids of those that were changed."""
        if not rows:
            return []
        ids = [self._key(row)[-1] for row in rows]
        stamp = self._settings.clock.now()
        if self._schedule_index.schedule.action is ScheduledAction.SET_FIELD:
            statement = scheduled_fields.change(self._store.sql, self._schedule_index, self._now, ids, stamp)
            ids = [row[0] for row in await tx.write(statement)]
            await self._tell_listeners(tx, rows, ids, stamp)
        elif self._schedule_index.schedule.action is ScheduledAction.ERASE:
            assert self._settings.erase is not None, "rules of retention alone erase, whose runner can"
            await self._settings.erase(self._store, ids, tx)
        else:
            physically = self._schedule_index.schedule.action is ScheduledAction.HARD_DELETE
            await remove_all(self._store, ids, tx, stamp, physically=physically)
        observers = self._settings.subscribers.observers
        if observers:
            records = [
                dict(zip(self._store.sql.names, row, strict=True)) for row in self._whole_rows(rows, ids)
            ]
            swept = SweepEvent(self._store.meta, self._schedule_index.schedule, stamp, records)
            for observer in observers:
                await self._show(observer, tx, swept)
        return ids

    async def _tell_listeners(self, tx: Tx, rows: Sequence[Row], ids: Sequence[str], stamp: datetime) -> None:
        """Tell those who listen to every write of the model that the field was set."""
        store, schedule = self._store, self._schedule_index.schedule
        if store.seam.needs_rows:
            stamps = {schedule.target: schedule.to, "updated_at": stamp}
            await store.seam.tell_rows(ChangeKind.UPDATE, tx, self._whole_rows(rows, ids), stamps)
        else:
            await store.seam.tell(ChangeKind.UPDATE, tx)

    async def _show(self, observer: Observer, tx: Tx, swept: SweepEvent) -> None:
        fence = Fence()
        try:
            await observer(tx, swept)
        except BaseException as error:
            raise fence.absorb(error) from error.__cause__

    async def _tell(self, ids: Sequence[str]) -> None:
        """Count the changed records and call each hook once per record."""
        schedule, subscribers = self._schedule_index.schedule, self._settings.subscribers
        sets = schedule.action is ScheduledAction.SET_FIELD
        self._counts["updated" if sets or schedule.erased_values else "deleted"] += len(ids)
        calls: Sequence[Callable[..., Any]] = subscribers.on_set_field if sets else subscribers.on_delete
        if schedule.erased_values:  # the record stays, and no field was set to a value
            return
        more = (schedule.target, schedule.to) if sets else ()
        for id in ids if calls else ():
            for call in calls:
                fence = Fence()
                try:
                    outcome = call(self._target.model, id, *more)
                    if inspect.isawaitable(outcome):
                        await outcome
                except BaseException as error:
                    self._fail(id, fence.absorb(error), "a hook of %s.%s failed")

    def _take(self, after: scheduled_fields.Place | None, most: int) -> Sql:
        return scheduled_fields.take(
            self._store.sql, self._schedule_index, self._now, after, most, whole=self._whole
        )

    def _key(self, row: Row) -> scheduled_fields.Place:
        return tuple(row[: 2 if self._schedule_index.rival is None else 3])

    def _whole_rows(self, rows: Sequence[Row], ids: Sequence[str]) -> list[Row]:
        """Those rows of these ids, without the key that `take` puts before them."""
        changed_ids, decode = set(ids), self._store.decode
        width = len(self._key(rows[0]))
        whole_rows = [row[width:] for row in rows if row[width - 1] in changed_ids]
        return whole_rows if decode is None else [decode(row) for row in whole_rows]

    def _skip(self, id: str, error: Exception) -> None:
        self._skipped = True
        self._counts["skipped"] += 1
        if isinstance(error, REFUSALS):
            self._note(id, error)
        else:
            self.failed = True
            self._fail(id, error, "the sweep of %s.%s had to leave a record alone", quiet=self._quiet)

    def _fail(self, id: str | None, error: Exception, text: str, *, quiet: bool = False) -> None:
        self._note(id, error)
        if not self._logged and not quiet:  # once: what fails for one record often fails for all of them
            self._logged = True
            where = (self._target.model, self._target.field)
            self._settings.logger.error(text, *where, exc_info=error)

    def _note(self, id: str | None, error: Exception) -> None:
        message = str(error) or type(error).__name__
        self._tally.fail(Failure(self._target.model, self._target.field, id, message))


def _is_transient(error: Exception) -> bool:
    """Whether the error is about this moment and not about the records."""
    return isinstance(error, TransactionError) or (isinstance(error, RequestError) and error.retryable)
