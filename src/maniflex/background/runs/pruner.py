"""Removes finished runs that are older than `Config.work_retention`."""

from __future__ import annotations

from datetime import datetime, timedelta

from maniflex.background.loop import Loop
from maniflex.background.partitions.layout import RUNS
from maniflex.background.partitions.retention import PartitionRetention
from maniflex.background.runs.engine import RunEngine

EVERY = timedelta(minutes=1)
BATCH = 500


class Pruner(Loop):
    """Removes them in small batches, or as whole partitions, so that no worker waits for it."""

    name = "maniflex-pruner"

    def __init__(self, engine: RunEngine) -> None:
        super().__init__(engine.clock, EVERY, engine.logger)
        self._engine = engine
        self._after: dict[str, str] = {}  # runs that stay are not looked at again before all others were
        self._partitions = PartitionRetention(engine.store.adapter, RUNS)

    async def tick(self) -> bool:
        keep = self._engine.config.work_retention
        if not keep:
            return False
        before = self.clock.now() - keep
        tables = await self._partitions.tables_to_prune(before)
        return any([await self._prune(table, before) for table in tables])

    async def _prune(self, table: str, before: datetime) -> bool:
        """Remove some runs of a table; whether to go on at once."""
        after = self._after.get(table, "")
        count, self._after[table] = await self._engine.store.prune(before, BATCH, after=after, table=table)
        if count:
            self._engine.metrics.add("runs_pruned_total", count)
        return count > 0 and self._after[table] != ""
