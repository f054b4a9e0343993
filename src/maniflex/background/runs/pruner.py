"""Removes finished runs that are older than anybody wants to know."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from maniflex.background.loop import Loop

if TYPE_CHECKING:
    from maniflex.background.runs.client import Work

EVERY = timedelta(minutes=1)
BATCH = 500


class Pruner(Loop):
    """Keeps `Config.work_retention`; small batches, so that nobody waits for it."""

    name = "maniflex-pruner"

    def __init__(self, work: Work) -> None:
        super().__init__(work.clock, EVERY, work.parts.logger)
        self._work = work
        self._after = ""  # runs that stay are not looked at again before all others were

    async def tick(self) -> bool:
        keep = self._work.parts.config.work_retention
        if not keep:
            return False
        before = self.clock.now() - keep
        removed, self._after = await self._work.store.prune(before, BATCH, after=self._after)
        if removed:
            self._work.parts.metrics.add("runs_pruned_total", removed)
        return removed > 0 and self._after != ""
