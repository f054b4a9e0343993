"""Writes down what came of runs, many at a time, until the database has taken it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from maniflex._backoff import Backoff
from maniflex._fence import Fence
from maniflex.background.lease import Held
from maniflex.background.runs.executor import released
from maniflex.background.runs.rows import Change, Claimed, State
from maniflex.background.runs.store import PASSING, RunStore, passes
from maniflex.background.watch import LastingTask, Watched
from maniflex.db.current import transaction
from maniflex.errors import RequestError

if TYPE_CHECKING:
    from maniflex.background.runs.client import Work

T = TypeVar("T")
AT_MOST = 1000
AGAIN = 0.02  # after which an outcome is tried again that could not be written, doubled each time
AGAIN_AT_MOST = {"locked": 0.5, "refused": 2.0}
COUNTED = {"retried": "runs_retried_total", "failed": "runs_failed_total"}
Taken: TypeAlias = list[tuple[tuple[Claimed, T], bool]]
_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class _Kind(Generic[T]):
    """One kind of outcome: what waits, who writes it, and the row `before` and `after` that."""

    waiting: list[tuple[Claimed, T]]
    write: Callable[[list[tuple[Claimed, T]], datetime], Awaitable[set[str]]]
    before: str
    after: Callable[[tuple[Claimed, T]], tuple[str, int]]


class Settler:
    """The outcomes of one worker's runs on their way to the database."""

    def __init__(self, work: Work, forget: Callable[[Held], None]) -> None:
        self._work = work
        self._forget = forget  # until then its lease is renewed
        self._store = work.store
        self._logger = work.parts.logger
        self._metrics = work.parts.metrics
        self._done: list[tuple[Claimed, str | None]] = []
        self._changed: list[tuple[Claimed, Change]] = []
        self._dropped: list[tuple[Claimed, None]] = []
        self._aside = {"locked": 0, "refused": 0}  # how many of them have to wait a moment, and why
        self._more = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task = LastingTask("maniflex-settler", self._run, self._logger)
        self._running = False
        self._stopping = False

    def use(self, store: RunStore) -> None:
        """Write to this store from now on."""
        self._store = store

    @property
    def waiting(self) -> int:
        return self._ready + sum(self._aside.values())

    @property
    def _ready(self) -> int:
        return len(self._done) + len(self._changed) + len(self._dropped)

    def succeed(self, claimed: Claimed, result: str | None) -> None:
        """Settle a run as succeeded."""
        self._done.append((claimed, result))
        self._more.set()

    def change(self, claimed: Claimed, change: Change) -> None:
        """Settle a run as something else."""
        self._changed.append((claimed, change))
        self._more.set()

    def release(self, claimed: Claimed) -> None:
        """Give a run back as if it had not been begun."""
        self.change(claimed, released(claimed, self._work.clock.now()))

    def let_go(self, claimed: Claimed) -> None:
        """The run was cancelled or lost; only a lease we may still have on it is cleared."""
        self._dropped.append((claimed, None))
        self._more.set()

    async def start(self) -> None:
        self._stopping = False
        self._more = asyncio.Event()
        self._running = True
        self._task.start()

    async def stop(self) -> None:
        """Write what is left; the caller's deadline is the only limit."""
        self._stopping = True
        self._more.set()
        if self._running:
            await self._task.stop()
            self._running = False
        elif self.waiting:
            await self.flush()

    def give_up(self) -> None:
        """Write nothing more; what is left is done again when its lease has ended."""
        if self._running:
            self._task.cancel()
            self._running = False

    @property
    def parts_to_watch(self) -> Sequence[Watched]:
        """What should be alive as long as this is started."""
        return (self._task,)

    async def _run(self) -> None:
        failures, fence = 0, Fence()
        while not (self._stopping and not self.waiting):
            if not self._ready:
                await self._more.wait()
                self._more.clear()
                continue
            try:
                await self.flush()
                failures = 0
            except BaseException as error:
                fence.absorb(error)
                failures += 1
                self._metrics.add("runs_settle_errors_total")
                if failures == 1:
                    self._logger.warning("outcomes could not be written yet: %s", error, exc_info=error)
                await asyncio.sleep(min(_BACKOFF(failures).total_seconds() / 5, 2))

    async def flush(self) -> None:
        """Write everything that is waiting now; what could not be written waits on."""
        failed: Exception | None = None
        async with self._writing:
            for write in (self._flush_done, self._flush_changed, self._flush_dropped):
                try:
                    await write()
                except Exception as error:  # of one kind; the others are no worse for it
                    failed = failed or error
        if failed is not None:
            raise failed

    async def flush_all(self) -> None:
        """Also wait for what somebody's open transaction holds up."""
        await self.flush()
        while self._ready or self._aside["locked"]:
            await asyncio.sleep(AGAIN)
            await self.flush()

    async def _flush_done(self) -> None:
        taken = await self._taken(_Kind(self._done, self._succeed, "leased", _succeeded))
        self._settled([(claimed, kept, "runs_succeeded_total") for (claimed, _), kept in taken])
        self._work.awaken_waiting(claimed for (claimed, _), kept in taken if kept)
        self._wake(claimed for (claimed, _), _ in taken if claimed.group_key is not None)

    async def _succeed(self, batch: list[tuple[Claimed, str | None]], now: datetime) -> set[str]:
        return await self._store.succeed([(claimed.held, result) for claimed, result in batch], now)

    async def _flush_changed(self) -> None:
        taken = await self._taken(_Kind(self._changed, self._write, "leased", _changed))
        self._settled([(claimed, kept, COUNTED.get(change.event)) for (claimed, change), kept in taken])
        self._wake(run for (run, change), _ in taken if change.status == "pending" or run.group_key)
        self._work.awaken_waiting(run for (run, change), kept in taken if kept and change.status == "failed")

    def _wake(self, followed: Iterable[Claimed]) -> None:
        """Some are due again at once, and others of a group could not start before."""
        if next(iter(followed), None) is not None:
            self._work.wake()

    async def _taken(self, kind: _Kind[T]) -> Taken[T]:
        """Write what waits first; which of it the database took, and whether it was still ours."""
        batch = _each_once(kind.waiting[:AT_MOST])
        if not batch:
            return []
        try:
            taken = await self._written(kind, batch)
        except RequestError as error:
            if passes(error) or len(batch) == 1:
                raise
            return await self._one_by_one(kind, batch)
        del kind.waiting[: len(batch)]
        return taken

    async def _written(self, kind: _Kind[T], batch: list[tuple[Claimed, T]]) -> Taken[T]:
        now = self._work.clock.now()
        for claimed, _ in batch:
            claimed.tried += (now,)
        kept = await kind.write(batch, now)
        if len(kept) == len(batch):
            return [(one, True) for one in batch]
        taken = [(one, True) for one in batch if one[0].id in kept]
        missing = [one for one in batch if one[0].id not in kept]
        states = await self._store.states([claimed.id for claimed, _ in missing]) if missing else {}
        for one in missing:
            found = states.get(one[0].id)
            if found is not None and (found.status, found.lease) == (kind.before, one[0].held.lease):
                self._put_aside(kind.waiting, one, "locked")
            else:
                taken.append((one, found is not None and _is_written(one[0], kind.after(one), found)))
        return taken

    async def _one_by_one(self, kind: _Kind[T], batch: list[tuple[Claimed, T]]) -> Taken[T]:
        """One that no database takes must not keep the others waiting."""
        taken: Taken[T] = []
        for one in batch:
            try:
                taken += await self._written(kind, [one])
            except PASSING:
                if not taken:
                    raise
                break
            except RequestError as error:
                self._metrics.add("runs_settle_errors_total")
                self._logger.error("the outcome of run %s is refused: %s", one[0].id, error)
                self._put_aside(kind.waiting, one, "refused")
            del kind.waiting[0]
        return taken

    def _put_aside(self, waiting: list[tuple[Claimed, T]], one: tuple[Claimed, T], why: str) -> None:
        """Try it again in a moment, and a longer one each time."""

        def again() -> None:
            self._aside[why] -= 1
            waiting.append(one)
            self._more.set()

        self._aside[why] += 1
        pause = min(AGAIN * 2 ** min(len(one[0].tried), 10), AGAIN_AT_MOST[why])
        asyncio.get_running_loop().call_later(pause, again)

    async def _write(self, batch: list[tuple[Claimed, Change]], now: datetime) -> set[str]:
        changes = [change for _, change in batch]
        careful = [c for c in changes if c.waiting_for is not None]
        dead = [(run, c) for run, c in batch if c.status == "failed" and self._work.dead_letter(run.type)]
        if not careful and not dead:
            return await self._store.settle(changes, now)
        async with transaction(self._store.adapter) as tx:
            free = await self._store.try_lock([c.held.id for c in changes], tx)
            changes = [await self._work.unless_signalled(c, now, tx) for c in changes if c.held.id in free]
            if not changes:
                return set()
            kept = await self._store.settle(changes, now, tx)
            for run, change in dead:
                if run.id in kept:
                    await self._work.bury(run.id, run.type, change.last_error, tx)
        return kept

    async def _flush_dropped(self) -> None:
        for (claimed, _), kept in await self._taken(
            _Kind(self._dropped, self._let_go, "cancelled", _cancelled)
        ):
            self._forget(claimed.held)
            if not kept:
                self._metrics.add("runs_lease_losses_total", type=claimed.type)
                self._logger.warning("run %s (%s) is another worker's by now", claimed.id, claimed.type)

    async def _let_go(self, batch: list[tuple[Claimed, None]], now: datetime) -> set[str]:
        return await self._store.let_go([claimed.held for claimed, _ in batch], now)

    def _settled(self, ended: Iterable[tuple[Claimed, bool, str | None]]) -> None:
        """Runs that the database answered about, whether they were still ours, and how they count."""
        counts: Counter[tuple[str, str]] = Counter()
        for claimed, kept, counter in ended:
            if not kept:
                self.let_go(claimed)  # cancelled meanwhile, or another worker's by now
            else:
                self._forget(claimed.held)
                if counter is not None:
                    counts[counter, claimed.type] += 1
            self._work.settled(claimed, kept=kept)
        for (counter, type), number in counts.items():
            self._metrics.add(counter, number, type=type)


def _each_once(batch: list[tuple[Claimed, T]]) -> list[tuple[Claimed, T]]:
    """The first of them: answers go by id, and a run that was lost and claimed again may be here twice."""
    seen: set[str] = set()
    for n, (claimed, _) in enumerate(batch):
        if claimed.id in seen:
            return batch[:n]
        seen.add(claimed.id)
    return batch


def _succeeded(one: tuple[Claimed, str | None]) -> tuple[str, int]:
    return "succeeded", one[0].attempt


def _changed(one: tuple[Claimed, Change]) -> tuple[str, int]:
    return one[1].status, one[0].attempt - one[1].unspent


def _cancelled(one: tuple[Claimed, None]) -> tuple[str, int]:
    return "cancelled", one[0].attempt


def _is_written(run: Claimed, after: tuple[str, int], found: State) -> bool:
    """Whether an earlier try was taken after all, though its answer was lost."""
    return found.lease is None and (found.status, found.attempt) == after and found.updated_at in run.tried
