"""Removes finished runs that are older than `Config.work_retention`."""

from __future__ import annotations

from datetime import timedelta

from maniflex.background.loop import Loop
from maniflex.background.runs.engine import RunEngine

EVERY = timedelta(minutes=1)
BATCH = 500


class Pruner(Loop):
    """Removes them in small batches, so that no worker waits for it."""

    name = "maniflex-pruner"

    def __init__(self, engine: RunEngine) -> None:
        super().__init__(engine.clock, EVERY, engine.logger)
        self._engine = engine
        self._after = ""  # runs that stay are not looked at again before all others were

    async def tick(self) -> bool:
        keep = self._engine.config.work_retention
        if not keep:
            return False
        before = self.clock.now() - keep
        count, self._after = await self._engine.store.prune(before, BATCH, after=self._after)
        if count:
            self._engine.metrics.add("runs_pruned_total", count)
        return count > 0 and self._after != ""
