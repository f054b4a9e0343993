"""Removes rows whose time is over from the tables of catalogue entries, and old records of audit trails.

Such rows count as absent from that moment on, so nothing waits for this: it only keeps the tables small.
Records of audit trails count until they are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from maniflex._clock import Clock
from maniflex.background.loop import Loop
from maniflex.db.port import Adapter
from maniflex.model.meta import ModelMeta
from maniflex.sql.history import delete_old_versions, last_of_stretch
from maniflex.sql.model import ModelSql
from maniflex.sql.write import delete_expired

# Removes the versions that histories need not keep any longer (`history_retention`).


PRUNE_EVERY = timedelta(hours=1)
BATCH = 1000


@dataclass(slots=True, kw_only=True)
class KeptHistory:
    """A history, the records it tells of, and how long it keeps their versions."""

    adapter: Adapter
    history: ModelSql
    records: ModelSql
    keep: timedelta
    position: str = ""  # up to where this pass has come
    removed: int = 0


class HistoryPruner(Loop):
    """Goes through histories from their oldest versions on, a batch at a time."""

    name = "maniflex-history-pruner"

    def __init__(self, histories: Sequence[KeptHistory], clock: Clock, logger: logging.Logger) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._histories = histories

    async def tick(self) -> bool:
        """One batch of each history; True while a pass has not come to its end."""
        return any([await self._prune(one) for one in self._histories])

    async def prune_all(self, until: Callable[[], bool]) -> dict[str, int]:
        """One pass over each history to its end, or until it is asked to stop; what went, by model."""
        counts: dict[str, int] = {}
        for one in [replace(one, position="") for one in self._histories]:
            while not until() and await self._prune(one):
                pass
            if one.removed:
                counts[one.history.meta.name] = one.removed
        return counts

    async def _prune(self, one: KeptHistory) -> bool:
        horizon = self.clock.now() - one.keep
        row = await one.adapter.fetch_one(last_of_stretch(one.history, horizon, one.position, BATCH))
        last = None if row is None else row[0]
        if last is None:
            one.position = ""
            return False
        one.removed += await one.adapter.execute(
            delete_old_versions(one.history, one.records, horizon, one.position, str(last))
        )
        one.position = str(last)
        return True


EVERY = timedelta(minutes=1)
GRACE = timedelta(minutes=1)  # clocks differ, and the process with the slowest may still count a row


class ExpiredRows(Loop):
    """Removes them in small batches, so that no request waits for it."""

    name = "maniflex-expired-rows"

    def __init__(
        self,
        tables: Sequence[tuple[Adapter, ModelMeta]],
        clock: Clock,
        logger: logging.Logger,
        *,
        logs: Sequence[tuple[Adapter, ModelMeta]] = (),
        keep_logs: timedelta = timedelta(0),
    ) -> None:
        super().__init__(clock, EVERY, logger)
        self._tables = tables
        self._logs = logs if keep_logs else ()
        self._keep_logs = keep_logs

    async def tick(self) -> bool:
        """Remove one batch from each table; True while one of them was full."""
        before = self.clock.now() - GRACE
        counts = [
            await adapter.execute(delete_expired(table, adapter.dialect, before, BATCH))
            for adapter, table in self._tables
        ]
        counts += [await self._prune_log(adapter, table) for adapter, table in self._logs]
        return max(counts, default=0) >= BATCH

    async def prune_logs(self, until: Callable[[], bool]) -> dict[str, int]:
        """Remove all old records of audit trails, or some if it is asked to stop; what went, by model."""
        counts: dict[str, int] = {}
        for adapter, table in self._logs:
            count = BATCH
            while count >= BATCH and not until():
                count = await self._prune_log(adapter, table)
                counts[table.name] = counts.get(table.name, 0) + count
        return {name: count for name, count in counts.items() if count}

    async def _prune_log(self, adapter: Adapter, table: ModelMeta) -> int:
        horizon = self.clock.now() - self._keep_logs
        return await adapter.execute(delete_expired(table, adapter.dialect, horizon, BATCH, "timestamp"))
