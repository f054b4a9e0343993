"""A worker: claims runs as it has room for them, works on them side by side, settles them in batches.

A claimed run is started at once, so a crash costs an attempt only of runs that had begun. Outcomes
wait in memory until the database has taken them, however often it fails; a run is forgotten only when
it is settled or known to belong to another worker.
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
from maniflex.background.leases import Held, LeaseKeeper
from maniflex.background.loop import Loop
from maniflex.background.runs.attempt import Attempt
from maniflex.background.runs.claim_cursor import ClaimCursor
from maniflex.background.runs.claimer import Claimer
from maniflex.background.runs.executor import NO_HANDLER
from maniflex.background.runs.handlers import ranges_without, type_range
from maniflex.background.runs.rescuer import Rescuer
from maniflex.background.runs.rows import ClaimedRun, Renewed
from maniflex.background.runs.settler import Settler
from maniflex.background.runs.step_memory import StepMemory
from maniflex.background.runs.store import CHANNEL, RunStore
from maniflex.background.threads import DaemonThreads
from maniflex.background.watch import WatchedPart
from maniflex.db.current import current_tx, detached_context, executor
from maniflex.db.port import Adapter, Executor
from maniflex.errors import Conflict, DeclarationError, TransactionError
from maniflex.sql.statement import Dialect

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work

CLAIM_AT_MOST = 1000
PORTION = 50  # with room for two of them, one half is claimed while the other is worked on
PATIENCE = 0.05


class RunWorker:
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
        config = work.environment.config
        self.name = f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"
        self.concurrency = concurrency or config.work_concurrency
        self.portion = self.concurrency if self.concurrency < 2 * PORTION else self.concurrency // 2
        self.lease = lease or config.work_lease
        self.work = work
        self.store = self.queue = work.store
        self.clock = work.clock
        self.new_memory = partial(StepMemory, self.store, self.clock)
        self.logger = work.environment.logger
        self.metrics = work.environment.metrics
        self._prefixes = tuple(prefixes or config.worker_type_prefixes)
        if not all(self._prefixes):
            raise DeclarationError(
                "a prefix of types is not empty; without any, a worker takes its own types"
            )
        self._types = tuple(types)
        self._leave = frozenset(leave)
        self._ranges = (
            sorted(map(type_range, types))
            if types
            else ranges_without(work.handlers.ranges(self._prefixes), self._leave)
        )
        self._leases = work.handlers.leases()
        self._grace = config.shutdown_timeout * 2 / 3
        self._running: set[Attempt] = set()
        self._lease_keeper = LeaseKeeper(
            self.store.adapter, self._renew, self.beat, self.logger, self._lease_keeper_failed
        )
        self.settler = Settler(work, self._lease_keeper.drop)
        poll = poll_interval or config.work_poll_interval
        self._claimer = Claimer(self, poll)
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
        await self._lease_keeper.start()
        try:
            await self._open_queue(self._stack)
            await self.settler.start()
            await self._stack.enter_async_context(self.store.adapter.listen(CHANNEL, self._claimer.wake))
        except BaseException:
            await self.stop(timedelta(0))
            raise
        self.work.workers.append(self._claimer.wake)
        await self._rescuer.start()
        await self._claimer.start()
        self._introduce()

    async def _open_queue(self, stack: AsyncExitStack) -> None:
        """On Postgres, claim and settle on connections whose plans do not change with the weather."""
        adapter = self.store.adapter
        if adapter.dialect is Dialect.POSTGRES:
            steady = adapter.sibling(steady=True)
            await steady.open()
            stack.push_async_callback(self._close_queue, steady)
            self.queue = RunStore(steady, logged=self.work.environment.config.work_events)
            self.settler.use(self.queue)

    async def _close_queue(self, steady: Adapter) -> None:
        self.queue = self.store
        self.settler.use(self.store)
        await steady.close()

    def _introduce(self) -> None:
        types = sorted(handler.type for handler in self.work.handlers if handler.type not in self._leave)
        for prefix in () if self._types else self._prefixes:
            if not any(type.startswith(prefix) for type in types):
                self.logger.warning(
                    "no handler has a type that starts with %r: such runs fail here with %s",
                    prefix,
                    NO_HANDLER,
                )
        type_names = [*self._types] or [f"{prefix}*" for prefix in self._prefixes] or [*types, "default.*"]
        self.logger.info("worker started: types %s, %d at a time", ", ".join(type_names), self.concurrency)

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Claim nothing more, let what runs finish, then hand back the rest; no outcome is lost."""
        self._started = False
        if self._claimer.wake in self.work.workers:
            self.work.workers.remove(self._claimer.wake)
        try:
            await self._claimer.stop()
            await self._rescuer.stop()
            grace = (self._grace if timeout is None else timeout).total_seconds()
            if self._running:
                await self._wait_for_attempts(grace)
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
            await self._lease_keeper.stop()
        finally:
            await self._stack.aclose()

    def hurry(self) -> None:
        """While stopping: wait no longer for what runs, hand it back now."""
        self._hurried.set()

    async def _wait_for_attempts(self, grace: float) -> None:
        """Wait until no attempt runs any more, or time is up."""
        all_ended = asyncio.ensure_future(asyncio.wait([attempt.task for attempt in self._running]))
        hurry = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait((all_ended, hurry), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        all_ended.cancel()
        hurry.cancel()

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
            # No other worker may have it while it still runs here; its lease ends some time after we did.
            run = attempt.claimed
            self.logger.warning("run %s (%s) did not stop in time", run.id, run.type)
        if self._unsure:
            with suppress(Exception):  # else their leases end
                for run in await self._recover_claims():
                    self.settler.release(run)

    # -- working

    @property
    def free(self) -> int:
        return self.concurrency - len(self._running)

    @property
    def busy(self) -> int:
        return len(self._running)

    @property
    def loop(self) -> Loop:
        """The loop that claims, for health checks."""
        return self._claimer

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        """What should be alive as long as this is started."""
        return (self._claimer, self._rescuer, *self.settler.parts_to_watch, self._lease_keeper)

    def wake(self) -> None:
        """Look for work now."""
        self._claimer.wake()

    async def run_once(self) -> int:
        """Work on due runs to their end, as many as there is room for; returns their number."""
        async with self._beating():
            return await self._round()

    async def _round(self) -> int:
        await self._rescuer.at_once()
        runs = await self.claim(self.free)
        attempts = self.begin(runs)
        if attempts:
            await asyncio.wait([attempt.task for attempt in attempts])
        await self.settler.flush_all()
        await self.work.wait_for_tasks()  # so that the next round finds whom they wake
        return len(runs)

    @asynccontextmanager
    async def _beating(self) -> AsyncIterator[None]:
        """With leases that are renewed, also where the worker is not started."""
        if current_tx(self.store.adapter) is not None:
            # What it wrote would wait for our commit, and with a rollback work would be undone that was done.
            raise TransactionError("TX_OPEN", "a worker does not work inside a transaction; commit it first")
        if self._lease_keeper.beating:
            yield
            return
        await self._lease_keeper.start()
        try:
            yield
        finally:
            try:
                await self._hand_back()  # there is something only when we are told to stop
                await self.settler.flush_all()
            finally:
                await self._lease_keeper.stop()

    async def drain(self, progress: Callable[[int], object] = lambda count: None) -> int:
        """`run_once` until nothing is due; how many runs that were. `progress` is told after each round."""
        total = 0
        async with self._beating(), AsyncExitStack() as stack:
            room = self.free
            while count := await self._round():
                total += count
                progress(total)
                if count >= room and self.queue is self.store:  # a backlog, which is worth the connection
                    await self._open_queue(stack)
        return total

    async def claim(self, room: int, cursor: ClaimCursor | None = None) -> list[ClaimedRun]:
        """Lease due runs for this worker; runs of its own claims whose answers were lost come first."""
        runs = await self._recover_claims() if self._unsure else []
        if not runs:
            runs = await self._claim(room, cursor or ClaimCursor())
        for type, number in Counter(run.type for run in runs).items():
            self.metrics.add("runs_claimed_total", number, type=type)
        return runs

    async def _claim(self, room: int, cursor: ClaimCursor) -> list[ClaimedRun]:
        now, token = self.clock.now(), new_id()
        until = now + self._shortest
        limit = min(room, CLAIM_AT_MOST)
        try:
            runs = await self.queue.claim(
                self._ranges, limit, self.name, now, self.lease, self._leases, token, cursor
            )
        except Conflict:  # another worker took a run of the same group in the same moment
            self.metrics.add("runs_claim_conflicts_total")
            return []
        except BaseException:
            self._unsure[token] = until
            raise
        for run in runs:
            run.until = until
        return runs

    async def _recover_claims(self) -> list[ClaimedRun]:
        """The runs of claims whose answers were lost: no other worker begins them, their attempt is spent."""
        runs = []
        held_here = set(self._lease_keeper.held)
        for token, until in list(self._unsure.items()):
            over = self.clock.now() >= until  # before that, what was sent may still be on its way
            recovered_runs = [
                run for run in await self.queue.find_claimed(token) if run.held not in held_here
            ]
            for run in recovered_runs:
                run.until = until
            runs += recovered_runs
            if over and not recovered_runs:
                del self._unsure[token]
        return runs

    def begin(self, runs: Sequence[ClaimedRun]) -> list[Attempt]:
        """Start working on runs we hold."""
        context = detached_context()
        attempts = [Attempt(self, run, context.copy()) for run in runs]
        self._running.update(attempts)
        for attempt in attempts:
            # Before they begin: a loop that is blocked until then must not cost them their leases.
            self._lease_keeper.hold(attempt.claimed.held, attempt.notice_loss)
        return attempts

    def note_end(self, attempt: Attempt) -> None:
        """An attempt is over: there is room for another."""
        self._running.discard(attempt)
        if self._started:
            self._claimer.room()

    @property
    def threads(self) -> DaemonThreads:
        """Where plain functions run."""
        if self._threads is None:
            self._threads = DaemonThreads(self.concurrency, "maniflex-run")
        return self._threads

    # -- leases

    async def _renew(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        """Renew leases, on the keeper's thread; the ids of those that are not ours any more."""
        gone_ids, locked_ids = await self._renew_leases(adapter, held)
        if locked_ids:
            self._lease_keeper.hurry()
            if not self._patient:
                self._patient = True
                first = next(one for one in held if one.id in locked_ids)
                self._lease_keeper.spawn(self._renew_next(adapter, first))
        return gone_ids

    async def _renew_leases(self, on: Executor, held: Sequence[Held]) -> Renewed:
        now = self.clock.now()
        types = {attempt.claimed.held: attempt.claimed.type for attempt in list(self._running)}
        until = [(h, now + self._leases.get(types.get(h, ""), self.lease)) for h in held]
        return await self.store.renew(on, until)

    async def _renew_next(self, adapter: Adapter, locked: Held) -> None:
        """Wait for the lock of a row, to renew its lease before the run is taken back."""
        try:
            while locked in self._lease_keeper.held:
                try:
                    async with adapter.transaction() as tx:
                        await tx.write(self.store.bind("lock", id=locked.id))
                        await self._renew_leases(tx, [locked])
                    await self._renew_leases(adapter, self._lease_keeper.held or [locked])
                    break
                except Exception:  # it is locked for longer than a statement may wait
                    await asyncio.sleep(PATIENCE)
        finally:
            self._patient = False

    async def renew_own(self) -> None:
        """Renew the leases of this worker, in the open transaction if there is one."""
        leases = self._lease_keeper.held
        if leases:
            await self._renew_leases(executor(self.store.adapter), leases)

    def _lease_keeper_failed(self, error: BaseException) -> None:
        self.metrics.add("runs_heartbeat_errors_total")
