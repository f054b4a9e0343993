"""Runs that wait for runs of their own: woken as soon as those are over, in any process.

A parent is woken after the commit that ends its child, so that no transaction waits for another
run's row. A parent that was not woken, because a process died in between, looks again by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from maniflex.background.runs.run import CHILD
from maniflex.background.runs.store import CHANNEL
from maniflex.db.current import current_tx
from maniflex.db.port import Executor, Tx

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work


class ChildWakeups:
    """Parents and children among the runs of one server."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._store = work.store

    async def tell_parents(self, ids: Sequence[str], tx: Tx | None = None) -> None:
        """Wake those who wait for these runs, which were ended by the open transaction, or just now."""
        open_tx = tx or current_tx(self._store.adapter)
        if open_tx is None:
            await self._work.await_logged(self.awaken_parents(ids))
        else:
            open_tx.after_commit(lambda: self._work.spawn(self.awaken_parents(ids)))

    async def awaken_parents(self, ids: Sequence[str]) -> None:
        """Wake those who wait for one of these runs, as far as it is over."""
        if await self._store.awaken_parents(ids, self._work.clock.now()):
            self._work.wake()

    async def is_over(self, waiting_for: str, on: Executor) -> bool:
        """Whether the child that is waited for needs no more waiting."""
        return not await on.write(self._store.bind("under_way", id=waiting_for.removeprefix(CHILD)))

    def look_once_more(self, id: str, waiting_for: str, tx: Tx) -> None:
        """Look again after the commit: a child that ended before it found no parent that waits."""
        tx.after_commit(lambda: self._work.spawn(self._look(id, waiting_for)))

    async def _look(self, id: str, waiting_for: str) -> None:
        adapter = self._store.adapter
        if await self.is_over(waiting_for, adapter):
            now = self._work.clock.now()
            await adapter.write(self._store.bind("awaken", id=id, name=waiting_for, now=now, channel=CHANNEL))
            self._work.wake()
