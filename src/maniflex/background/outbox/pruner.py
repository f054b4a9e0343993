"""Removes messages that were delivered long ago, and what the inbox remembers of such."""

from __future__ import annotations

import logging
from datetime import timedelta

from maniflex._clock import Clock
from maniflex.background.loop import Loop
from maniflex.background.outbox.store import OutboxStore

PRUNE_EVERY = timedelta(minutes=1)
PRUNE_AT_ONCE = 500


class MessagePruner(Loop):
    """Removes messages and inbox records from long ago, in small batches."""

    name = "outbox pruner"

    def __init__(
        self, store: OutboxStore, retention: timedelta, clock: Clock, logger: logging.Logger
    ) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._store = store
        self._retention = retention

    async def tick(self) -> bool:
        before = self.clock.now() - self._retention
        messages = await self._store.prune(before, PRUNE_AT_ONCE)
        inbox_rows = await self._store.prune_inbox(before, PRUNE_AT_ONCE)
        return PRUNE_AT_ONCE in (messages, inbox_rows)
