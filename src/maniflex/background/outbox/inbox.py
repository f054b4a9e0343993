"""Messages that were dealt with, so that one which comes twice is dealt with once.

The record is made in the transaction of the changes the message causes: both are there or neither is.
"""

from __future__ import annotations

from maniflex.background.environment import Environment
from maniflex.background.outbox.store import OutboxStore
from maniflex.db.current import require_tx
from maniflex.db.port import Tx
from maniflex.errors import DatabaseError


class Inbox:
    """`server.inbox`."""

    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._store: OutboxStore | None = None

    def attach(self, environment: Environment, store: OutboxStore) -> None:
        self._environment, self._store = environment, store

    async def once(self, message_id: str, tx: Tx | None = None, consumer: str = "default") -> bool:
        """True the first time a consumer asks about a message, False while that is remembered.

        It is remembered for `outbox_retention`, and recorded in the transaction handed over or open;
        without one it is refused. Of two transactions at the same time, the second waits for the end
        of the first.
        """
        if self._environment is None or self._store is None:
            raise DatabaseError("the inbox is used once the server is started")
        run = tx or require_tx(self._environment.adapter, "inbox.once()")
        return await self._store.once(run, consumer, message_id, self._environment.clock.now())
