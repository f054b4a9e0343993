"""A worker: claims runs as it has room for them, works on them side by side, settles them in batches.

A claimed run is started at once, so a crash costs an attempt only of runs that had begun. Outcomes
wait in memory until the database has taken them, however often it fails; a run is forgotten only when
it is settled or known to belong to another worker.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from maniflex._ids import new_id
from maniflex._threads import DaemonThreads
from maniflex.background.loop import Loop, WatchedPart
from maniflex.background.runs.attempt import Attempt
from maniflex.background.runs.claimer import Claimer, Rescuer, RunLeases
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.handlers import WorkerTypes
from maniflex.background.runs.outcomes import NO_HANDLER
from maniflex.background.runs.rows import ClaimCursor, ClaimedRun
from maniflex.background.runs.settler import Settler
from maniflex.background.runs.store import CHANNEL, RunStore
from maniflex.db.current import current_tx, detached_context
from maniflex.errors import TransactionError

PORTION = 50  # with room for two of them, one half is claimed while the other is worked on


class RunWorker:
    """Works on the runs of some types until it is stopped."""

    def __init__(
        self,
        engine: RunEngine,
        *,
        prefixes: Sequence[str] = (),
        types: Sequence[str] = (),
        leave: Collection[str] = (),
        concurrency: int | None = None,
        lease: timedelta | None = None,
        poll_interval: timedelta | None = None,
    ) -> None:
        """`types` are the only ones it takes, if there are any; those to `leave` are another worker's."""
        config = engine.config
        interval = poll_interval or config.work_poll_interval
        self.engine = engine
        self.name = f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"
        self.concurrency = concurrency or config.work_concurrency
        self.types = WorkerTypes(
            engine.handlers, prefixes or config.worker_type_prefixes, only=types, leave=leave
        )
        self.running: set[Attempt] = set()
        self.leases = RunLeases(engine, self.running, lease or config.work_lease)
        self.settler = Settler(engine, self.leases.drop)
        self.claimer = Claimer(
            engine,
            self.leases,
            owner=self.name,
            ranges=self.types.ranges,
            room=lambda: self.concurrency - len(self.running),
            begin=self.begin,
            portion=self.concurrency if self.concurrency < 2 * PORTION else self.concurrency // 2,
            interval=interval,
        )
        self.rescuer = Rescuer(engine, self.leases, self.claimer, interval)
        self._threads: DaemonThreads | None = None
        self._started = False
        self._hurried = asyncio.Event()
        self._open = AsyncExitStack()  # what a start opened

    # -- starting and stopping

    async def start(self) -> None:
        self._started = True
        await self.leases.start()
        try:
            await self._open_steady_store(self._open)
            await self.settler.start()
            listening = self.engine.store.adapter.listen(CHANNEL, self.claimer.wake)
            await self._open.enter_async_context(listening)
        except BaseException:
            await self.stop(timedelta(0))
            raise
        self.engine.workers.append(self.claimer.wake)
        await self.rescuer.start()
        await self.claimer.start()
        self._introduce()

    async def _open_steady_store(self, stack: AsyncExitStack) -> None:
        """Claim and settle on connections whose plans do not change, until the stack is closed."""
        self._use(await stack.enter_async_context(self.engine.store.steady()))
        stack.callback(self._use, self.engine.store)

    def _use(self, store: RunStore) -> None:
        self.claimer.store = store
        self.settler.use(store)

    def _introduce(self) -> None:
        for prefix in self.types.prefixes_without_handler():
            self.engine.logger.warning(
                "no handler has a type that starts with %r: such runs fail here with %s", prefix, NO_HANDLER
            )
        names = ", ".join(self.types.names())
        self.engine.logger.info("worker started: types %s, %d at a time", names, self.concurrency)

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Claim nothing more, let what runs finish, then hand back the rest; no outcome is lost."""
        self._started = False
        if self.claimer.wake in self.engine.workers:
            self.engine.workers.remove(self.claimer.wake)
        try:
            await self.claimer.stop()
            await self.rescuer.stop()
            grace = self.engine.config.shutdown_timeout * 2 / 3 if timeout is None else timeout
            if self.running:
                await self._wait_for_attempts(grace.total_seconds())
            await self._hand_back()
            await self.settler.stop()
        finally:  # however little time or database there is left
            await self._close()

    def hurry(self) -> None:
        """While stopping: wait no longer for what runs, hand it back now."""
        self._hurried.set()

    async def _wait_for_attempts(self, grace: float) -> None:
        """Wait until no attempt runs any more, or time is up."""
        all_ended = asyncio.ensure_future(asyncio.wait([attempt.task for attempt in self.running]))
        hurry = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait((all_ended, hurry), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        all_ended.cancel()
        hurry.cancel()

    async def _hand_back(self) -> None:
        late = self._tell_to_stop()
        if late:
            await asyncio.wait(late, timeout=1)
        for attempt in self.running:
            # No other worker may have it while it still runs here; its lease ends some time after we did.
            run = attempt.claimed
            self.engine.logger.warning("run %s (%s) did not stop in time", run.id, run.type)
        if self.claimer.unanswered:
            with suppress(Exception):  # else their leases end
                for run in await self.claimer.recover():
                    self.settler.release(run)

    def _tell_to_stop(self) -> list[asyncio.Task[None]]:
        late = list(self.running)
        for attempt in late:
            attempt.tell_to_stop()
        return [attempt.task for attempt in late]

    async def _close(self) -> None:
        """Keep nothing: what still runs here is not ours any more when its lease ends."""
        self._tell_to_stop()
        self.settler.give_up()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        try:
            await self.leases.stop()
        finally:
            await self._open.aclose()

    # -- working

    def claim(self, room: int, cursor: ClaimCursor | None = None) -> Coroutine[Any, Any, list[ClaimedRun]]:
        """Lease up to so many due runs for this worker."""
        return self.claimer.claim(room, cursor)

    def begin(self, runs: Sequence[ClaimedRun]) -> list[Attempt]:
        """Start working on runs we hold."""
        context = detached_context()
        moment = self.engine.clock.monotonic()
        for run in runs:
            run.begun = moment
        attempts = [Attempt(self, run, context.copy()) for run in runs]
        self.running.update(attempts)
        for attempt in attempts:
            # Before they begin: a loop that is blocked until then must not cost them their leases.
            self.leases.hold(attempt.claimed.held, attempt.notice_loss)
        return attempts

    def note_end(self, attempt: Attempt) -> None:
        """An attempt is over: there is room for another."""
        self.running.discard(attempt)
        if self._started:
            self.claimer.wake_for_room()

    @property
    def threads(self) -> DaemonThreads:
        """Where plain functions run."""
        if self._threads is None:
            self._threads = DaemonThreads(self.concurrency, "maniflex-run")
        return self._threads

    # -- working until nothing is due

    async def run_once(self) -> int:
        """Work on due runs to their end, as many as there is room for; returns their number."""
        async with self._renewing():
            return await self._round()

    async def drain(self, progress: Callable[[int], object] = lambda count: None) -> int:
        """`run_once` until nothing is due; how many runs that were. `progress` is told after each round."""
        total, is_steady = 0, self.claimer.store is not self.engine.store
        async with self._renewing(), AsyncExitStack() as stack:
            room = self.concurrency - len(self.running)
            while count := await self._round():
                total += count
                progress(total)
                if count >= room and not is_steady:  # a backlog, which is worth the connection
                    is_steady = True
                    await self._open_steady_store(stack)
        return total

    async def _round(self) -> int:
        if await self.claimer.store.has_expired(self.engine.clock.now()):
            await self.rescuer.at_once()
        runs = await self.claim(self.concurrency - len(self.running))
        attempts = self.begin(runs)
        if attempts:
            await asyncio.wait([attempt.task for attempt in attempts])
        await self.settler.flush_all()
        await self.engine.wait_for_tasks()  # so that the next round finds whom they wake
        return len(runs)

    @asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        """With leases that are renewed, also where the worker is not started."""
        if current_tx(self.engine.store.adapter) is not None:
            # What it wrote would wait for our commit, and with a rollback work would be undone that was done.
            raise TransactionError("TX_OPEN", "a worker does not work inside a transaction; commit it first")
        if self.leases.beating:
            yield
            return
        await self.leases.start()
        try:
            yield
        finally:
            try:
                await self._hand_back()  # there is something only when we are told to stop
                await self.settler.flush_all()
            finally:
                await self.leases.stop()

    # -- being watched

    @property
    def busy(self) -> int:
        return len(self.running)

    @property
    def loop(self) -> Loop:
        """The loop that claims, for health checks."""
        return self.claimer

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        """What should be alive as long as this is started."""
        return (self.claimer, self.rescuer, *self.settler.parts_to_watch, self.leases)

    def wake(self) -> None:
        """Look for work now."""
        self.claimer.wake()


def make_workers(engine: RunEngine, prefixes: Sequence[str], concurrency: int | None) -> list[RunWorker]:
    """The workers of a process: one for all types, and one for those of each concurrency of their own."""
    separate_types = engine.handlers.separate
    general = RunWorker(engine, prefixes=prefixes, concurrency=concurrency, leave=separate_types)
    ranges = engine.handlers.ranges(prefixes or engine.config.worker_type_prefixes)
    by_room: dict[int, list[str]] = defaultdict(list)
    for type, room in separate_types.items():
        if any(low <= type < high for low, high in ranges):
            by_room[room].append(type)
    return [general, *(RunWorker(engine, types=types, concurrency=room) for room, types in by_room.items())]
