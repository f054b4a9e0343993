"""One pass over the outbox: for a job that is started every minute and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from maniflex.background.outbox.dispatcher import Dispatcher
from maniflex.db.current import current_tx
from maniflex.db.port import Adapter
from maniflex.errors import DatabaseError


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
