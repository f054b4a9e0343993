"""Removes finished runs that are older than `Config.work_retention`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from maniflex.background.loop import Loop

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work

EVERY = timedelta(minutes=1)
BATCH = 500


class Pruner(Loop):
    """Removes them in small batches, so that no worker waits for it."""

    name = "maniflex-pruner"

    def __init__(self, work: Work) -> None:
        super().__init__(work.clock, EVERY, work.environment.logger)
        self._work = work
        self._after = ""  # runs that stay are not looked at again before all others were

    async def tick(self) -> bool:
        keep = self._work.environment.config.work_retention
        if not keep:
            return False
        before = self.clock.now() - keep
        count, self._after = await self._work.store.prune(before, BATCH, after=self._after)
        if count:
            self._work.environment.metrics.add("runs_pruned_total", count)
        return count > 0 and self._after != ""
