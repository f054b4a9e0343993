"""The leases of one worker's runs: how long they last, and their renewal."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta

from maniflex.background.leases import Held, LeaseKeeper
from maniflex.background.runs.attempt import Attempt
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.rows import Renewed
from maniflex.db.current import executor
from maniflex.db.port import Adapter, Executor

PATIENCE = 0.05


class RunLeases(LeaseKeeper[Adapter]):
    """Renews the leases of the runs that a worker has, each for as long as its type has one."""

    def __init__(self, engine: RunEngine, running: Collection[Attempt], usual: timedelta) -> None:
        self.usual = usual
        self.by_type = engine.handlers.leases()
        self.shortest = min([usual, *self.by_type.values()])
        self.beat_interval = self.shortest / 3  # how long a living worker may take to renew a lease
        super().__init__(
            engine.store.adapter, self._renew_held, self.beat_interval, engine.logger, self._count_error
        )
        self._engine = engine
        self._running = running
        self._waits_for_lock = False

    async def renew_own(self) -> None:
        """Renew all held leases now, in the open transaction if there is one."""
        leases = self.held
        if leases:
            await self._extend(executor(self._engine.store.adapter), leases)

    async def _renew_held(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        """Renew leases, on the keeper's thread; the ids of those that are not ours any more."""
        gone_ids, locked_ids = await self._extend(adapter, held)
        if locked_ids:
            self.hurry()
            if not self._waits_for_lock:
                self._waits_for_lock = True
                first = next(one for one in held if one.id in locked_ids)
                self.spawn(self._renew_locked(adapter, first))
        return gone_ids

    async def _extend(self, on: Executor, held: Sequence[Held]) -> Renewed:
        now = self._engine.clock.now()
        types = {attempt.claimed.held: attempt.claimed.type for attempt in list(self._running)}
        until = [(h, now + self.by_type.get(types.get(h, ""), self.usual)) for h in held]
        return await self._engine.store.renew(on, until)

    async def _renew_locked(self, adapter: Adapter, locked: Held) -> None:
        """Wait for the lock of a row, to renew its lease before the run is taken back."""
        try:
            while locked in self.held:
                try:
                    async with adapter.transaction() as tx:
                        await tx.write(self._engine.store.bind("lock", id=locked.id))
                        await self._extend(tx, [locked])
                    await self._extend(adapter, self.held or [locked])
                    break
                except Exception:  # it is locked for longer than a statement may wait
                    await asyncio.sleep(PATIENCE)
        finally:
            self._waits_for_lock = False

    def _count_error(self, error: BaseException) -> None:
        self._engine.metrics.add("runs_heartbeat_errors_total")
