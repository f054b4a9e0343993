"""Removes rows whose time is over from the tables of catalogue entries, and old records of audit trails.

Such rows count as absent from that moment on, so nothing waits for this: it only keeps the tables small.
Records of audit trails count until they are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
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


class HistoryPruner(Loop):
    """Goes through histories from their oldest versions on, a batch at a time."""

    name = "maniflex-history-pruner"

    def __init__(self, histories: Sequence[KeptHistory], clock: Clock, logger: logging.Logger) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._histories = histories

    async def tick(self) -> bool:
        """One batch of each history; True while a pass has not come to its end."""
        return any([await self._prune(one) for one in self._histories])

    async def _prune(self, one: KeptHistory) -> bool:
        horizon = self.clock.now() - one.keep
        row = await one.adapter.fetch_one(last_of_stretch(one.history, horizon, one.position, BATCH))
        last = None if row is None else row[0]
        if last is None:
            one.position = ""
            return False
        await one.adapter.execute(
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
        horizon = self.clock.now() - self._keep_logs
        counts += [
            await adapter.execute(delete_expired(table, adapter.dialect, horizon, BATCH, "timestamp"))
            for adapter, table in self._logs
        ]
        return max(counts, default=0) >= BATCH
