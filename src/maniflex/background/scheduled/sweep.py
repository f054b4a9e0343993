"""One lane of one schedule, swept batch by batch.

A batch is one transaction: the due rows are locked, changed and shown to the observers. Where a
record refuses (others refer to it, a constraint holds, an observer raises), the batch is tried again
in parts, so that the record is left alone and its neighbours are not. Hooks come after the commit.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex._clock import Clock
from maniflex._fence import Fence
from maniflex.background.scheduled.observers import Observer, Swept, Told
from maniflex.background.scheduled.report import Failure, Tally
from maniflex.db.current import transaction
from maniflex.db.port import Row, Tx
from maniflex.db.removal import refused, remove_all
from maniflex.db.store import Store
from maniflex.errors import (
    ConstraintViolation,
    DeleteRestricted,
    ForeignKeyViolation,
    RequestError,
    TransactionError,
)
from maniflex.model.schedule import Action
from maniflex.sql import due
from maniflex.sql.statement import Sql
from maniflex.sql.waiting import Lane

REFUSALS = (DeleteRestricted, ConstraintViolation, ForeignKeyViolation)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A lane and the store of its rows."""

    store: Store
    lane: Lane

    @property
    def model(self) -> str:
        return self.store.meta.name

    @property
    def field(self) -> str:
        return self.lane.schedule.time


@dataclass(frozen=True, slots=True)
class Settings:
    """What all lanes of a sweep have in common."""

    clock: Clock
    logger: logging.Logger
    batch: int
    most: int | None  # batches per lane
    told: Told


class LaneSweep:
    """A lane during one sweep, which is about the rows that were due when it began."""

    def __init__(
        self,
        target: Target,
        now: datetime,
        settings: Settings,
        tally: Tally,
        *,
        start: due.Place | None = None,
        quiet: bool = False,
    ) -> None:
        self.resume: due.Place | None = None  # where the next sweep had better begin
        self.broken = False  # whether it was stopped by an error
        self.failed = False  # whether records were left alone because of an error
        self._quiet = quiet  # about both, which has been told before
        self._place = self._start = start
        self._target = target
        self._store, self._lane = target.store, target.lane
        self._now = now
        self._settings = settings
        self._tally = tally
        self._counts = tally.of(target.model)
        self._batches = 0
        self._whole = bool(settings.told.observers)
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
        """End before the end: there may be more."""
        self._counts["truncated"] = True

    async def _batch(self) -> bool:
        self._batches += 1
        took, served = await self._serve()
        if took:
            self._place = self._key(took[-1])
        await self._tell(served)
        full = len(took) == self._settings.batch
        useless = self.failed and not served  # likely so for every record: go on behind them next time
        again = full and not useless and self._batches != self._settings.most
        if not again:
            await self._end(full)
        return again

    async def _serve(self) -> tuple[list[Row], list[str]]:
        """The rows that were found due, and the ids of those that were changed."""
        took: list[Row] = []
        try:
            async with transaction(self._store.adapter) as tx:
                took = await tx.fetch(self._take(self._place, self._settings.batch))
                return took, await self._apply(tx, took)
        except Exception as error:
            if not took or _passes(error):
                raise
            return took, await self._in_parts([self._key(row)[-1] for row in took], error)

    async def _end(self, full: bool) -> None:
        """See whether rows are left: behind the last batch, or before where the sweep began."""
        if not full and self._start is None:
            return
        async with transaction(self._store.adapter) as tx:
            left = bool(await tx.fetch(self._take(self._place if full else None, 1)))
        self._counts["truncated"] = self._counts["truncated"] or left
        if full and left and self._skipped:  # what was skipped stays due and must not block the rest
            self.resume = self._place

    async def _in_parts(self, ids: Sequence[str], error: Exception) -> list[str]:
        """Serve those that can be served, apart from those that refuse."""
        kept: set[str] = set()
        if self._lane.schedule.action is not Action.SET_FIELD and isinstance(error, REFUSALS):
            async with transaction(self._store.adapter) as tx:
                kept = await refused(self._store, ids, tx)
        for id in ids:
            if id in kept:
                self._skip(id, DeleteRestricted())
        half = len(ids) // 2
        parts = [[id for id in ids if id not in kept]] if kept else [ids[:half], ids[half:]]
        return [id for part in parts if part for id in await self._again(part)]

    async def _again(self, ids: Sequence[str]) -> list[str]:
        try:
            async with transaction(self._store.adapter) as tx:
                statement = due.take_again(self._store.sql, self._lane, self._now, ids, whole=self._whole)
                return await self._apply(tx, await tx.fetch(statement))
        except Exception as error:
            if _passes(error):
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
        if self._lane.schedule.action is Action.SET_FIELD:
            statement = due.change(self._store.sql, self._lane, self._now, ids, stamp)
            ids = [row[0] for row in await tx.write(statement)]
        else:
            physically = self._lane.schedule.action is Action.HARD_DELETE
            await remove_all(self._store, ids, tx, stamp, physically=physically)
        if self._whole:
            swept = Swept(self._store.meta, self._lane.schedule, stamp, self._records(rows, set(ids)))
            for observer in self._settings.told.observers:
                await self._show(observer, tx, swept)
        return ids

    async def _show(self, observer: Observer, tx: Tx, swept: Swept) -> None:
        fence = Fence()
        try:
            await observer(tx, swept)
        except BaseException as error:
            raise fence.absorb(error) from error.__cause__

    async def _tell(self, ids: Sequence[str]) -> None:
        """Count what was changed and call the hooks, each once per record."""
        schedule, told = self._lane.schedule, self._settings.told
        sets = schedule.action is Action.SET_FIELD
        self._counts["updated" if sets else "deleted"] += len(ids)
        calls: Sequence[Callable[..., Any]] = told.on_set_field if sets else told.on_delete
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
                fence.end_if_forked()

    def _take(self, after: due.Place | None, most: int) -> Sql:
        return due.take(self._store.sql, self._lane, self._now, after, most, whole=self._whole)

    def _key(self, row: Row) -> due.Place:
        return tuple(row[: 2 if self._lane.rival is None else 3])

    def _records(self, rows: Sequence[Row], ids: set[str]) -> list[dict[str, Any]]:
        sql = self._store.sql
        found = []
        for row in rows:
            key = self._key(row)
            if key[-1] in ids:
                values = row[len(key) :]
                found.append(dict(zip(sql.names, sql.decode(values) if sql.decode else values, strict=True)))
        return found

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


def _passes(error: Exception) -> bool:
    """Whether it is about this moment and not about the records."""
    return isinstance(error, TransactionError) or (isinstance(error, RequestError) and error.retryable)
