"""Leave a server that hangs, where the address names another one.

A server whose machine or disk has stopped keeps its connections and says nothing. Waiting for the deadline of
each statement would take half a minute. So once a second this looks for statements that are unanswered for a
while, and if no connection hears anything, asks the server for a new one: it hangs if that fails in time too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from maniflex.db.postgres.connection import PooledConnection
from maniflex.db.postgres.hosts import Hosts
from maniflex.db.postgres.pool import Pool

LOOK_EVERY = 1.0
SUSPECT_AFTER = 3  # looks that found the same statements unanswered
ASK_AGAIN_AFTER = 5  # looks, when the server turned out to be only slow

log = logging.getLogger("maniflex.db")


class HangWatch:
    """Watches the connections of one server; calls `leave` when it hangs."""

    def __init__(self, hosts: Hosts, pools: Sequence[Pool], leave: Callable[[], None]) -> None:
        self._hosts = hosts
        self._pools = pools
        self._leave = leave
        self._unanswered: dict[PooledConnection, float] = {}
        self._looks = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Count how long nothing was heard; ask the server when that is too long."""
        before, self._unanswered = self._unanswered, self._waiting()
        # A deadline is set anew by each statement, and is the same only while one statement goes on.
        is_silent = bool(before) and all(self._unanswered.get(slot) == due for slot, due in before.items())
        self._looks = self._looks + 1 if is_silent else 0
        if self._looks < SUSPECT_AFTER:
            return
        if await self._hosts.answers():
            self._looks = SUSPECT_AFTER - ASK_AGAIN_AFTER
            return
        self._looks = 0
        log.warning("%s: the server hangs; its connections are closed", self._hosts.address.label)
        for pool in self._pools:
            pool.discard_all()
        self._leave()

    def _waiting(self) -> dict[PooledConnection, float]:
        return {slot: slot.due for pool in self._pools for slot in pool.slots if slot.due}
