"""A worker: claims runs as it has room for them, works on them side by side, settles them in batches.

What is claimed is started at once, so a crash costs an attempt only of runs that had begun. Outcomes
wait in memory until the database has taken them, however often it fails; a run is forgotten only when
it is settled or known to belong to somebody else.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from maniflex._ids import new_id
from maniflex.background.lease import Heart, Held
from maniflex.background.loop import Loop
from maniflex.background.runs.attempt import Attempt
from maniflex.background.runs.executor import NO_HANDLER
from maniflex.background.runs.handlers import ranges_without, type_range
from maniflex.background.runs.rounds import Feeder, Rescuer
from maniflex.background.runs.rows import Claimed, Renewed
from maniflex.background.runs.settler import Settler
from maniflex.background.runs.steps import Memory
from maniflex.background.runs.store import CHANNEL, RunStore
from maniflex.background.runs.trail import Trail
from maniflex.background.threads import DaemonThreads
from maniflex.background.watch import Watched
from maniflex.db.current import current_tx, detached, executor
from maniflex.db.port import Adapter, Executor
from maniflex.errors import Conflict, DeclarationError, TransactionError
from maniflex.sql.statement import Dialect

if TYPE_CHECKING:
    from maniflex.background.runs.client import Work

CLAIM_AT_MOST = 1000
PORTION = 50  # with room for two of them, one half is claimed while the other is worked on
PATIENCE = 0.05


class Worker:
    """Works on the runs of some types until it is stopped."""

    def __init__(
        self,
        work: Work,
        *,
        prefixes: Sequence[str] = (),
        types: Sequence[str] = (),
        leave: Collection[str] = (),
        concurrency: int | None = None,
        lease: timedelta | None = None,
        poll_interval: timedelta | None = None,
    ) -> None:
        """`types` are the only ones it takes, if there are any; those to `leave` are another worker's."""
        config = work.parts.config
        self.name = f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"
        self.concurrency = concurrency or config.work_concurrency
        self.portion = self.concurrency if self.concurrency < 2 * PORTION else self.concurrency // 2
        self.lease = lease or config.work_lease
        self.work = work
        self.store = self.queue = work.store
        self.clock = work.clock
        self.new_memory = partial(Memory, self.store, self.clock)
        self.logger = work.parts.logger
        self.metrics = work.parts.metrics
        self._asked = tuple(prefixes or config.worker_type_prefixes)
        if not all(self._asked):
            raise DeclarationError(
                "a prefix of types is not empty; without any, a worker takes its own types"
            )
        self._types = tuple(types)
        self._leave = frozenset(leave)
        self._ranges = (
            sorted(map(type_range, types))
            if types
            else ranges_without(work.handlers.ranges(self._asked), self._leave)
        )
        self._leases = work.handlers.leases()
        self._grace = config.shutdown_timeout * 2 / 3
        self._running: set[Attempt] = set()
        self._heart = Heart(self.store.adapter, self._renew, self.beat, self.logger, self._heart_failed)
        self.settler = Settler(work, self._heart.drop)
        poll = poll_interval or config.work_poll_interval
        self._feeder = Feeder(self, poll)
        self._rescuer = Rescuer(self, poll)
        self._threads: DaemonThreads | None = None
        self._stack = AsyncExitStack()
        self._started = False
        self._hurried = asyncio.Event()
        self._unsure: dict[str, datetime] = {}  # claims that were not answered, and until when they may hold
        self._patient = False

    @property
    def _shortest(self) -> timedelta:
        return min([self.lease, *self._leases.values()])

    @property
    def beat(self) -> timedelta:
        """How long a living worker may take to renew a lease."""
        return self._shortest / 3

    # -- starting and stopping

    async def start(self) -> None:
        self._started = True
        await self._heart.start()
        try:
            await self._open_queue(self._stack)
            await self.settler.start()
            await self._stack.enter_async_context(self.store.adapter.listen(CHANNEL, self._feeder.wake))
        except BaseException:
            await self.stop(timedelta(0))
            raise
        self.work.workers.append(self._feeder.wake)
        await self._rescuer.start()
        await self._feeder.start()
        self._introduce()

    async def _open_queue(self, stack: AsyncExitStack) -> None:
        """On Postgres, claim and settle on connections whose plans do not change with the weather."""
        adapter = self.store.adapter
        if adapter.dialect is Dialect.POSTGRES:
            steady = adapter.sibling(steady=True)
            await steady.open()
            stack.push_async_callback(self._close_queue, steady)
            self.queue = RunStore(steady, logged=self.work.parts.config.work_events)
            self.settler.use(self.queue)

    async def _close_queue(self, steady: Adapter) -> None:
        self.queue = self.store
        self.settler.use(self.store)
        await steady.close()

    def _introduce(self) -> None:
        types = sorted(handler.type for handler in self.work.handlers if handler.type not in self._leave)
        for prefix in () if self._types else self._asked:
            if not any(type.startswith(prefix) for type in types):
                self.logger.warning(
                    "no handler has a type that starts with %r: such runs fail here with %s",
                    prefix,
                    NO_HANDLER,
                )
        asked = [*self._types] or [f"{prefix}*" for prefix in self._asked] or [*types, "default.*"]
        self.logger.info("worker started: types %s, %d at a time", ", ".join(asked), self.concurrency)

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Claim nothing more, let what runs finish, then hand back the rest; no outcome is lost."""
        self._started = False
        if self._feeder.wake in self.work.workers:
            self.work.workers.remove(self._feeder.wake)
        try:
            await self._feeder.stop()
            await self._rescuer.stop()
            grace = (self._grace if timeout is None else timeout).total_seconds()
            if self._running:
                await self._finished(grace)
            await self._hand_back()
            await self.settler.stop()
        finally:  # however little time or database there is left
            await self._close()

    async def _close(self) -> None:
        """Keep nothing: what still runs here is not ours any more when its lease ends."""
        self._tell_to_stop()
        self.settler.give_up()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        try:
            await self._heart.stop()
        finally:
            await self._stack.aclose()

    def hurry(self) -> None:
        """While stopping: wait no longer for what runs, hand it back now."""
        self._hurried.set()

    async def _finished(self, grace: float) -> None:
        """Until nothing runs any more, or time is up."""
        ended = asyncio.ensure_future(asyncio.wait([attempt.task for attempt in self._running]))
        hurried = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait((ended, hurried), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        hurried.cancel()

    def _tell_to_stop(self) -> list[asyncio.Task[None]]:
        late = list(self._running)
        for attempt in late:
            attempt.tell_to_stop()
        return [attempt.task for attempt in late]

    async def _hand_back(self) -> None:
        late = self._tell_to_stop()
        if late:
            await asyncio.wait(late, timeout=1)
        for attempt in self._running:
            # Nobody may have it while it still runs here; its lease ends some time after we did.
            run = attempt.claimed
            self.logger.warning("run %s (%s) did not stop in time", run.id, run.type)
        if self._unsure:
            with suppress(Exception):  # else their leases end
                for claimed in await self._found():
                    self.settler.release(claimed)

    # -- working

    @property
    def free(self) -> int:
        return self.concurrency - len(self._running)

    @property
    def busy(self) -> int:
        return len(self._running)

    @property
    def loop(self) -> Loop:
        """What claims, for those who watch over it."""
        return self._feeder

    @property
    def parts_to_watch(self) -> Sequence[Watched]:
        """What should be alive as long as this is started."""
        return (self._feeder, self._rescuer, *self.settler.parts_to_watch, self._heart)

    def wake(self) -> None:
        """Look for work now."""
        self._feeder.wake()

    async def run_once(self) -> int:
        """Work on what is due now, as much as there is room for, to its end; how many runs that were."""
        async with self._beating():
            return await self._round()

    async def _round(self) -> int:
        await self._rescuer.at_once()
        claimed = await self.claim(self.free)
        attempts = self.begin(claimed)
        if attempts:
            await asyncio.wait([attempt.task for attempt in attempts])
        await self.settler.flush_all()
        await self.work.hints_told()  # so that the next round finds whom they wake
        return len(claimed)

    @asynccontextmanager
    async def _beating(self) -> AsyncIterator[None]:
        """With leases that are renewed, also where the worker is not started."""
        if current_tx(self.store.adapter) is not None:
            # What it wrote would wait for our commit, and with a rollback work would be undone that was done.
            raise TransactionError("TX_OPEN", "a worker does not work inside a transaction; commit it first")
        if self._heart.beating:
            yield
            return
        await self._heart.start()
        try:
            yield
        finally:
            try:
                await self._hand_back()  # there is something only when we are told to stop
                await self.settler.flush_all()
            finally:
                await self._heart.stop()

    async def drain(self, progress: Callable[[int], object] = lambda done: None) -> int:
        """`run_once` until nothing is due; how many runs that were. `progress` is told after each round."""
        total = 0
        async with self._beating(), AsyncExitStack() as stack:
            room = self.free
            while done := await self._round():
                total += done
                progress(total)
                if done >= room and self.queue is self.store:  # a backlog, which is worth the connection
                    await self._open_queue(stack)
        return total

    async def claim(self, room: int, trail: Trail | None = None) -> list[Claimed]:
        """Lease due runs for this worker; those it has already and does not know of come first."""
        claimed = await self._found() if self._unsure else []
        if not claimed:
            claimed = await self._claim(room, trail or Trail())
        for type, number in Counter(run.type for run in claimed).items():
            self.metrics.add("runs_claimed_total", number, type=type)
        return claimed

    async def _claim(self, room: int, trail: Trail) -> list[Claimed]:
        now, token = self.clock.now(), new_id()
        until = now + self._shortest
        limit = min(room, CLAIM_AT_MOST)
        try:
            claimed = await self.queue.claim(
                self._ranges, limit, self.name, now, self.lease, self._leases, token, trail
            )
        except Conflict:  # another worker took a run of the same group in the same moment
            self.metrics.add("runs_claim_conflicts_total")
            return []
        except BaseException:
            self._unsure[token] = until
            raise
        for run in claimed:
            run.until = until
        return claimed

    async def _found(self) -> list[Claimed]:
        """What claims took whose answers were lost: nobody else begins it, and its attempt is spent."""
        found = []
        known = set(self._heart.held)
        for token, until in list(self._unsure.items()):
            over = self.clock.now() >= until  # before that, what was sent may still be on its way
            taken = [run for run in await self.queue.claimed(token) if run.held not in known]
            for run in taken:
                run.until = until
            found += taken
            if over and not taken:
                del self._unsure[token]
        return found

    def begin(self, claimed: Sequence[Claimed]) -> list[Attempt]:
        """Start working on runs we hold."""
        context = detached()
        begun = [Attempt(self, run, context.copy()) for run in claimed]
        self._running.update(begun)
        for attempt in begun:
            # Before they begin: whatever blocks the loop until then must not cost them their leases.
            self._heart.hold(attempt.claimed.held, attempt.lost)
        return begun

    def ended(self, attempt: Attempt) -> None:
        """An attempt is over: there is room for another."""
        self._running.discard(attempt)
        if self._started:
            self._feeder.room()

    @property
    def threads(self) -> DaemonThreads:
        """Where plain functions run."""
        if self._threads is None:
            self._threads = DaemonThreads(self.concurrency, "maniflex-run")
        return self._threads

    # -- leases

    async def _renew(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        """Called on the heart's thread."""
        gone, locked = await self._renewed(adapter, held)
        if locked:
            self._heart.hurry()
            if not self._patient:
                self._patient = True
                first = next(one for one in held if one.id in locked)
                self._heart.beside(self._renew_next(adapter, first))
        return gone

    async def _renewed(self, on: Executor, held: Sequence[Held]) -> Renewed:
        now = self.clock.now()
        types = {attempt.claimed.held: attempt.claimed.type for attempt in list(self._running)}
        until = [(h, now + self._leases.get(types.get(h, ""), self.lease)) for h in held]
        return await self.store.renew(on, until)

    async def _renew_next(self, adapter: Adapter, locked: Held) -> None:
        """Stand in line for a row that somebody has locked, to be there before it is taken back."""
        try:
            while locked in self._heart.held:
                try:
                    async with adapter.transaction() as tx:
                        await tx.write(self.store.bind("lock", id=locked.id))
                        await self._renewed(tx, [locked])
                    await self._renewed(adapter, self._heart.held or [locked])
                    break
                except Exception:  # it is locked for longer than a statement may wait
                    await asyncio.sleep(PATIENCE)
        finally:
            self._patient = False

    async def renew_own(self) -> None:
        """Renew what we hold, in the open transaction if there is one."""
        held = self._heart.held
        if held:
            await self._renewed(executor(self.store.adapter), held)

    def _heart_failed(self, error: BaseException) -> None:
        self.metrics.add("runs_heartbeat_errors_total")
