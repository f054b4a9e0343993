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
from maniflex.background.watch import WatchedPart


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
