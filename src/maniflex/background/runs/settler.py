"""Writes the outcomes of runs, many at a time, until the database has taken them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar

from maniflex._clock import Backoff
from maniflex._fence import Fence
from maniflex.background.leases import Held
from maniflex.background.loop import LastingTask, WatchedPart
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.model import Status
from maniflex.background.runs.outcomes import release_change
from maniflex.background.runs.rows import ClaimedRun, RunChange, RunState
from maniflex.background.runs.store import TRANSIENT_ERRORS, RunStore, passes
from maniflex.db.current import transaction
from maniflex.errors import RequestError

T = TypeVar("T")
AT_MOST = 1000
RETRY_DELAY = 0.02  # after which an outcome is tried again that could not be written, doubled each time
RETRY_DELAY_AT_MOST = {"locked": 0.5, "refused": 2.0}
COUNTED = {"retried": "runs_retried_total", "failed": "runs_failed_total"}
OUTCOMES = {
    "runs_succeeded_total": "succeeded",
    "runs_retried_total": "retried",
    "runs_failed_total": "failed",
}
Answers: TypeAlias = list[tuple[tuple[ClaimedRun, T], bool]]
_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class _OutcomeKind(Generic[T]):
    """One kind of outcome: what waits, who writes it, and the row `before` and `after` that."""

    waiting: list[tuple[ClaimedRun, T]]
    write: Callable[[list[tuple[ClaimedRun, T]], datetime], Awaitable[set[str]]]
    before: str
    after: Callable[[tuple[ClaimedRun, T]], tuple[str, int]]


class Settler:
    """The outcomes of one worker's runs on their way to the database."""

    def __init__(self, engine: RunEngine, forget: Callable[[Held], None]) -> None:
        self._engine = engine
        self._forget = forget  # until then its lease is renewed
        self._store = engine.store
        self._logger = engine.logger
        self._metrics = engine.metrics
        self._successes: list[tuple[ClaimedRun, str | None]] = []
        self._changes: list[tuple[ClaimedRun, RunChange]] = []
        self._dropped: list[tuple[ClaimedRun, None]] = []
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
        return len(self._successes) + len(self._changes) + len(self._dropped)

    def succeed(self, run: ClaimedRun, result: str | None) -> None:
        """Settle a run as succeeded."""
        self._successes.append((run, result))
        self._more.set()

    def change(self, run: ClaimedRun, change: RunChange) -> None:
        """Settle a run as something else."""
        self._changes.append((run, change))
        self._more.set()

    def release(self, run: ClaimedRun) -> None:
        """Give a run back as if it had not been begun."""
        self.change(run, release_change(run, self._engine.clock.now()))

    def let_go(self, run: ClaimedRun) -> None:
        """The run was cancelled or lost; only a lease we may still have on it is cleared."""
        self._dropped.append((run, None))
        self._more.set()

    async def start(self) -> None:
        self._stopping = False
        self._more = asyncio.Event()
        self._running = True
        self._task.start()

    async def stop(self) -> None:
        """Write the outcomes that wait; the caller's deadline is the only limit."""
        self._stopping = True
        self._more.set()
        if self._running:
            await self._task.stop()
            self._running = False
        elif self.waiting:
            await self.flush()

    def give_up(self) -> None:
        """Write nothing more; runs whose outcome is lost are done again when their lease has ended."""
        if self._running:
            self._task.cancel()
            self._running = False

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
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
        first_error: Exception | None = None
        async with self._writing:
            for write in (self._flush_done, self._flush_changed, self._flush_dropped):
                try:
                    await write()
                except Exception as error:  # of one kind; the others are no worse for it
                    first_error = first_error or error
        if first_error is not None:
            raise first_error

    async def flush_all(self) -> None:
        """Also wait for outcomes whose row another transaction has locked."""
        await self.flush()
        while self._ready or self._aside["locked"]:
            await asyncio.sleep(RETRY_DELAY)
            await self.flush()

    async def _flush_done(self) -> None:
        answers = await self._write_first(
            _OutcomeKind(self._successes, self._succeed, Status.LEASED, _state_after_success)
        )
        self._note_answers([(run, still_ours, "runs_succeeded_total") for (run, _), still_ours in answers])
        self._engine.awaken_waiting(run for (run, _), still_ours in answers if still_ours)
        self._wake(run for (run, _), _ in answers if run.group_key is not None)

    async def _succeed(self, batch: list[tuple[ClaimedRun, str | None]], now: datetime) -> set[str]:
        successes = [(run.held, result) for run, result in batch]
        if not self._engine.publishers:
            return await self._store.succeed(successes, now)
        async with transaction(self._store.adapter) as tx:
            settled_ids = await self._store.succeed(successes, now, tx)
            await self._engine.publish_ends(sorted(settled_ids), tx)
        return settled_ids

    async def _flush_changed(self) -> None:
        answers = await self._write_first(
            _OutcomeKind(self._changes, self._write_changes, Status.LEASED, _state_after_change)
        )
        self._note_answers(
            [(run, still_ours, COUNTED.get(change.event)) for (run, change), still_ours in answers]
        )
        self._wake(run for (run, change), _ in answers if change.status == Status.PENDING or run.group_key)
        self._engine.awaken_waiting(
            run for (run, change), still_ours in answers if still_ours and change.status == Status.FAILED
        )

    def _wake(self, followed: Iterable[ClaimedRun]) -> None:
        """Some are due again at once, and others of a group could not start before."""
        if next(iter(followed), None) is not None:
            self._engine.wake()

    async def _write_first(self, kind: _OutcomeKind[T]) -> Answers[T]:
        """Write the first outcomes that wait; those the database took, and whether the run was still ours."""
        batch = _each_once(kind.waiting[:AT_MOST])
        if not batch:
            return []
        try:
            answers = await self._write_batch(kind, batch)
        except RequestError as error:
            if passes(error) or len(batch) == 1:
                raise
            return await self._write_one_by_one(kind, batch)
        del kind.waiting[: len(batch)]
        return answers

    async def _write_batch(self, kind: _OutcomeKind[T], batch: list[tuple[ClaimedRun, T]]) -> Answers[T]:
        now = self._engine.clock.now()
        for run, _ in batch:
            run.tried += (now,)
        settled_ids = await kind.write(batch, now)
        if len(settled_ids) == len(batch):
            return [(one, True) for one in batch]
        answers = [(one, True) for one in batch if one[0].id in settled_ids]
        missing = [one for one in batch if one[0].id not in settled_ids]
        states = await self._store.states([run.id for run, _ in missing]) if missing else {}
        for one in missing:
            state = states.get(one[0].id)
            if state is not None and (state.status, state.lease) == (kind.before, one[0].held.lease):
                self._put_aside(kind.waiting, one, "locked")
            else:
                is_written = state is not None and _is_written(one[0], kind.after(one), state)
                if state is not None and is_written:
                    one[0].tried = (state.updated_at,)  # when it was, which counts by the minute go by
                answers.append((one, is_written))
        return answers

    async def _write_one_by_one(self, kind: _OutcomeKind[T], batch: list[tuple[ClaimedRun, T]]) -> Answers[T]:
        """Write outcomes one by one: one that no database takes must not keep the others waiting."""
        answers: Answers[T] = []
        for one in batch:
            try:
                answers += await self._write_batch(kind, [one])
            except TRANSIENT_ERRORS:
                if not answers:
                    raise
                break
            except RequestError as error:
                self._metrics.add("runs_settle_errors_total")
                self._logger.error("the outcome of run %s is refused: %s", one[0].id, error)
                self._put_aside(kind.waiting, one, "refused")
            del kind.waiting[0]
        return answers

    def _put_aside(self, waiting: list[tuple[ClaimedRun, T]], one: tuple[ClaimedRun, T], why: str) -> None:
        """Try it again in a moment, and a longer one each time."""

        def again() -> None:
            self._aside[why] -= 1
            waiting.append(one)
            self._more.set()

        self._aside[why] += 1
        pause = min(RETRY_DELAY * 2 ** min(len(one[0].tried), 10), RETRY_DELAY_AT_MOST[why])
        asyncio.get_running_loop().call_later(pause, again)

    async def _write_changes(self, batch: list[tuple[ClaimedRun, RunChange]], now: datetime) -> set[str]:
        changes = [change for _, change in batch]
        careful = [c for c in changes if c.waiting_for is not None]
        failed = [(run, c) for run, c in batch if c.status == Status.FAILED]
        dead = [(run, c) for run, c in failed if self._engine.dead_letter(run.type)]
        if not careful and not dead and not (failed and self._engine.publishers):
            return await self._store.settle(changes, now)
        async with transaction(self._store.adapter) as tx:
            free = await self._store.try_lock([c.held.id for c in changes], tx)
            changes = [await self._engine.unless_signalled(c, now, tx) for c in changes if c.held.id in free]
            if not changes:
                return set()
            settled_ids = await self._store.settle(changes, now, tx)
            for run, change in dead:
                if run.id in settled_ids:
                    await self._engine.bury(run.id, run.type, change.last_error, tx)
            await self._engine.publish_ends([run.id for run, _ in failed if run.id in settled_ids], tx)
        return settled_ids

    async def _flush_dropped(self) -> None:
        for (run, _), still_ours in await self._write_first(
            _OutcomeKind(self._dropped, self._let_go, Status.CANCELLED, _state_after_cancel)
        ):
            self._forget(run.held)
            if not still_ours:
                self._metrics.add("runs_lease_losses_total", type=run.type)
                self._logger.warning("run %s (%s) is another worker's by now", run.id, run.type)

    async def _let_go(self, batch: list[tuple[ClaimedRun, None]], now: datetime) -> set[str]:
        return await self._store.let_go([run.held for run, _ in batch], now)

    def _note_answers(self, answers: Iterable[tuple[ClaimedRun, bool, str | None]]) -> None:
        """Count the settled runs and tell of them; let go of those that were not ours any more."""
        counts: dict[tuple[str, str, datetime], list[float]] = {}  # how many, and their seconds
        for run, still_ours, counter in answers:
            if not still_ours:
                self.let_go(run)  # cancelled meanwhile, or another worker's by now
            else:
                self._forget(run.held)
                if counter is not None:
                    count = counts.setdefault((counter, run.type, run.tried[-1]), [0, 0.0])
                    count[0] += 1
                    count[1] += run.busy
            self._engine.note_settled(run, still_ours=still_ours)
        for (counter, type, moment), (number, seconds) in counts.items():
            self._metrics.add(counter, number, type=type)
            minute = self._metrics.minutes.of(moment, "run", type)
            outcome = OUTCOMES[counter]
            setattr(minute, outcome, getattr(minute, outcome) + int(number))
            minute.busy += seconds


def _each_once(batch: list[tuple[ClaimedRun, T]]) -> list[tuple[ClaimedRun, T]]:
    """The first of them: answers go by id, and a run that was lost and claimed again may be here twice."""
    ids: set[str] = set()
    for n, (run, _) in enumerate(batch):
        if run.id in ids:
            return batch[:n]
        ids.add(run.id)
    return batch


def _state_after_success(one: tuple[ClaimedRun, str | None]) -> tuple[str, int]:
    return Status.SUCCEEDED, one[0].attempt


def _state_after_change(one: tuple[ClaimedRun, RunChange]) -> tuple[str, int]:
    return one[1].status, one[0].attempt - one[1].unspent


def _state_after_cancel(one: tuple[ClaimedRun, None]) -> tuple[str, int]:
    return Status.CANCELLED, one[0].attempt


def _is_written(run: ClaimedRun, after: tuple[str, int], state: RunState) -> bool:
    """Whether an earlier try was taken after all, though its answer was lost."""
    return state.lease is None and (state.status, state.attempt) == after and state.updated_at in run.tried
