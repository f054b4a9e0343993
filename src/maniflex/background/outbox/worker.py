"""The relay that stays: it delivers messages as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from maniflex._clock import Clock
from maniflex.background.loop import Loop
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.dispatcher import Dispatcher
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.partitions.layout import MESSAGES
from maniflex.background.partitions.retention import PartitionRetention
from maniflex.background.threads import WatchedPart
from maniflex.db.current import current_tx
from maniflex.db.port import Adapter
from maniflex.errors import DatabaseError


class OutboxWorker(Loop):
    """Polls the outbox, catches up without a pause, and is woken when something is enqueued."""

    name = "outbox"

    def __init__(
        self,
        store: OutboxStore,
        dispatcher: Callable[[Callable[[], bool]], Dispatcher],
        clock: Clock,
        interval: timedelta,
        logger: logging.Logger,
        metrics: Metrics,
    ) -> None:
        super().__init__(clock, interval, logger)
        self._store = store
        self._metrics = metrics
        self._dispatcher = dispatcher(lambda: self.stopping)
        self._dispatcher.on_room = self.wake
        self._open = AsyncExitStack()

    @property
    def delivered(self) -> int:
        """How many messages this worker has delivered."""
        return self._dispatcher.delivered

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        return (self, self._dispatcher.lease_keeper)

    async def tick(self) -> bool:
        return await self._dispatcher.step()

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("outbox_poll_errors_total")

    async def start(self) -> None:
        try:
            await self._dispatcher.lease_keeper.start()
            await super().start()
            await self._open.enter_async_context(self._store.listen(self.wake))
        except BaseException:
            await self._dispatcher.in_time(self.stop())
            raise

    async def stop(self) -> None:
        """Claim nothing more, let the running handler finish and give back the rest."""
        async with AsyncExitStack() as last:  # each, though another fails
            last.push_async_callback(self._dispatcher.lease_keeper.stop)
            last.push_async_callback(self._open.aclose)
            await super().stop()
            await self._dispatcher.hand_back()

    async def run(self) -> None:
        """Work until this is cancelled."""
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._dispatcher.in_time(self.stop())


# One pass over the outbox: for a job that is started every minute and ends.


class Drainer:
    """Delivers until nothing is left to claim; may be used again and again, beside any other relay."""

    def __init__(self, adapter: Adapter, dispatcher: Callable[[], Dispatcher]) -> None:
        self._adapter = adapter
        self._dispatcher = dispatcher

    async def drain(self, progress: Callable[[int], object] = lambda delivered: None) -> int:
        """How many messages were delivered; `progress` is told after each batch."""
        if current_tx(self._adapter) is not None:
            raise DatabaseError("drain() inside a transaction would deliver what may be rolled back")
        dispatcher = self._dispatcher()
        await dispatcher.lease_keeper.start()
        try:
            more = True
            while more:
                more = await dispatcher.step() or await dispatcher.wait_for_aside()
                progress(dispatcher.delivered)
            return dispatcher.delivered
        except asyncio.CancelledError:
            dispatcher.cancel_aside()
            raise
        finally:
            try:
                await dispatcher.finish()  # there is something only when we were cancelled or a step failed
            finally:
                await dispatcher.lease_keeper.stop()


# Removes messages that were delivered long ago, and what the inbox remembers of such.


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
