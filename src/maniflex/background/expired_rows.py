"""Removes rows whose time is over from the tables of catalogue entries, and old records of audit trails.

Such rows count as absent from that moment on, so nothing waits for this: it only keeps the tables small.
Records of audit trails count until they are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from maniflex._clock import Clock
from maniflex.background.loop import Loop
from maniflex.db.port import Adapter
from maniflex.model.meta import ModelMeta
from maniflex.sql.write import delete_expired

EVERY = timedelta(minutes=1)
BATCH = 1000
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
