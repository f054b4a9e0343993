"""Messages that were dealt with, so that one which comes twice is dealt with once.

The record is made in the transaction of the changes the message causes: both are there or neither is.
"""

from __future__ import annotations

from collections.abc import Callable

from maniflex.background.environment import Environment
from maniflex.background.outbox.store import OutboxStore
from maniflex.db.current import require_tx
from maniflex.db.port import Tx


class Inbox:
    """`server.inbox`."""

    store: OutboxStore  # from the moment the server is sealed

    def __init__(self, require_sealed: Callable[[], Environment]) -> None:
        """`require_sealed` gives the environment of an outbox that is at work, and refuses any other."""
        self._require_sealed = require_sealed

    async def once(self, message_id: str, tx: Tx | None = None, consumer: str = "default") -> bool:
        """True the first time a consumer asks about a message, False while that is remembered.

        It is remembered for `outbox_retention`, and recorded in the transaction handed over or open;
        without one it is refused. Of two transactions at the same time, the second waits for the end
        of the first.
        """
        environment = self._require_sealed()
        run = tx or require_tx(environment.adapter, "inbox.once()")
        return await self.store.once(run, consumer, message_id, environment.clock.now())
