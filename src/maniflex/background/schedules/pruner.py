"""Forgets firings of schedules from long ago."""

from __future__ import annotations

from datetime import timedelta

from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.schedules.store import ScheduleStore

PRUNE_EVERY = timedelta(minutes=10)
PRUNE_BATCH = 1000


class FiringPruner(Loop):
    """Forgets firings that are older than `Config.work_retention`."""

    name = "maniflex-schedule-pruner"

    def __init__(self, environment: Environment, store: ScheduleStore) -> None:
        super().__init__(environment.clock, PRUNE_EVERY, environment.logger)
        self._keep = environment.config.work_retention
        self._store = store

    async def tick(self) -> bool:
        if not self._keep:
            return False
        return await self._store.prune(self.clock.now() - self._keep, PRUNE_BATCH) == PRUNE_BATCH
