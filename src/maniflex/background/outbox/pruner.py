"""Removes messages that were delivered long ago, and what the inbox remembers of such."""

from __future__ import annotations

import logging
from datetime import timedelta

from maniflex._clock import Clock
from maniflex.background.loop import Loop
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.partitions.layout import MESSAGES
from maniflex.background.partitions.retention import PartitionRetention

PRUNE_EVERY = timedelta(minutes=1)
PRUNE_AT_ONCE = 500


class MessagePruner(Loop):
    """Removes messages and inbox records from long ago, in small batches or as whole partitions."""

    name = "outbox pruner"

    def __init__(
        self, store: OutboxStore, retention: timedelta, clock: Clock, logger: logging.Logger
    ) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._store = store
        self._retention = retention
        self._partitions = PartitionRetention(store.adapter, MESSAGES)

    async def tick(self) -> bool:
        before = self.clock.now() - self._retention
        tables = await self._partitions.tables_to_prune(before)
        counts = [await self._store.prune(before, PRUNE_AT_ONCE, table) for table in tables]
        counts.append(await self._store.prune_inbox(before, PRUNE_AT_ONCE))
        return PRUNE_AT_ONCE in counts
