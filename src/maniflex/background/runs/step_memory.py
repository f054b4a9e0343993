"""What a run remembers between attempts: the results of its steps and the signals it was sent.

Everything is written only while the run is ours (`LeaseLost` otherwise), so a worker that was given
up for dead cannot slip a result into what its successor does. As long as the run may be ours, what
could not be written for the moment is tried again: else what was done would be done twice.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from maniflex._callables import is_async
from maniflex._clock import Backoff, Clock
from maniflex._fence import Fence
from maniflex._ids import new_id
from maniflex._json import Unreadable, Unstored, decode_stored, not_stored, readable_text
from maniflex._logging import guard_logger
from maniflex._threads import begin_on_thread
from maniflex.background.leases import Held
from maniflex.background.runs.store import RunStore, passes
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Row, Tx
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.sealed_json import DOES_NOT_OPEN, WorkSealing
from maniflex.errors import (
    DeclarationError,
    DecryptionError,
    EncryptionNotConfigured,
    LeaseLost,
    RequestError,
    RunCancelled,
    ValidationFailed,
)
from maniflex.sql.statement import Sql

OURS = "@"  # begins the names of what the engine remembers; of steps that begin so, another one does
FAILED = f"{OURS}failed"
RESULT = "workflow_step.result"  # where results of steps are stored
UNDO_ATTEMPTS = 10
_PAUSE = Backoff(base=timedelta(milliseconds=50), cap=timedelta(seconds=2))

log = guard_logger(logging.getLogger("maniflex.work"))


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step whose function returned."""

    id: str  # of its row
    name: str
    stored: str  # the name of its row
    compensate: Callable[[Any], Any] | None


class StepMemory:
    """The memory of one run during one attempt."""

    def __init__(
        self, store: RunStore, clock: Clock, sealing: WorkSealing | None = None, key_id: str | None = None
    ) -> None:
        self._sealing = sealing or WorkSealing(Keyring())
        self._key_id = key_id  # under which what is remembered is stored
        self._store = store
        self._clock = clock
        self._steps: dict[str, Any] | None = None
        self._compensated: set[str] = set()
        self._undoable: set[str] = set()
        self._doubted: set[str] = set()  # of the undoable ones: written in a transaction that may not commit
        # Of this attempt alone: how often each pause came, what can be taken back, which steps are under way.
        self.counts: dict[str, int] = {}
        self.undo: list[tuple[str, Callable[[Any], Any], Any]] = []
        self.open_steps = OpenSteps()
        self.unstored: dict[str, str] = {}  # of those in `undo`: whose result is nowhere but there, and why

    async def steps(self, run_id: str) -> dict[str, Any]:
        """Results by name; read once per attempt."""
        return await self._read(run_id) if self._steps is None else self._steps

    async def settle_doubts(self, run_id: str) -> None:
        """Read again which steps were committed, where the answer to a commit was lost."""
        if self._steps is None or self._doubted:
            await self._read(run_id)

    async def _read(self, run_id: str) -> dict[str, Any]:
        rows = await self._ask(self._store.bind("steps", id=run_id), None)
        self._steps = {
            row[0]: Unstored() if row[1] is None else await self._open(row[1], RESULT, run_id, row[0])
            for row in rows
        }
        self._compensated = {row[0] for row in rows if row[2]}
        self._undoable = {row[0] for row in rows if row[3]}
        self._doubted.clear()
        return self._steps

    async def remember(self, held: Held, name: str, result: Any, tx: Tx | None = None) -> Any:
        """Keep something of the engine's own; gives it back as it will be read."""
        text, value = readable_text(result, f"result of step {name!r}", to_seal=self._key_id is not None)
        await self._write(held, name, text, False, new_id(), tx)
        self.once_written(partial(self._note, name, value, False), tx)
        return value

    def keeper(self, held: Held, name: str, stored: str, compensate: Any) -> Callable[..., Awaitable[Any]]:
        """What keeps the result of a step that begins now."""
        return partial(self.keep, held, DoneStep(new_id(), name, stored, compensate))

    async def keep(self, held: Held, step: DoneStep, result: Any, tx: Tx | None = None) -> Any:
        """Keep the result of a step, twice as if it were once; gives it back as it will be read.

        What cannot be stored is refused, but the step was done all the same: that is kept, and for as long
        as this attempt goes on, what it takes to take the step back.
        """
        what, undoable = f"result of step {step.name!r}", step.compensate is not None
        try:
            text, value = readable_text(result, what, to_seal=self._key_id is not None)
        except ValidationFailed as error:
            await self._keep_unstored(held, step, result, error, tx)
            raise
        try:
            await self._write(held, step.stored, text, undoable, step.id, tx)
        except RequestError as error:
            if passes(error) or self._within(tx) is not None:
                raise
            failure = not_stored(what, f"is refused by the database: {error}")  # too large, or too deep
            await self._keep_unstored(held, step, result, failure, tx)
            raise failure from error
        self.once_written(partial(self._note, step.stored, value, undoable), tx)
        if step.compensate is not None:
            undo = (step.name, step.compensate, value)
            self.once_written(partial(self.undo.append, undo), tx)
        return value

    async def _keep_unstored(
        self, held: Held, step: DoneStep, result: Any, error: ValidationFailed, tx: Tx | None
    ) -> None:
        await self._write(held, step.stored, None, step.compensate is not None, step.id, tx)

        def note() -> None:
            self._note(step.stored, Unstored(), step.compensate is not None)
            if step.compensate is not None:
                self.undo.append((step.name, step.compensate, result))
                self.unstored[step.stored] = error.message

        self.once_written(note, tx)

    async def _write(
        self, held: Held, name: str, text: str | None, undoable: bool, step: str, tx: Tx | None
    ) -> None:
        if text is not None:
            keep = self._sealing.keep_object if name.startswith(OURS) else self._sealing.keep
            text = await keep(text, self._key_id, RESULT, held.id, name)
        if undoable:  # also when we do not live to hear that it is written
            (self._doubted if self._within(tx) else self._undoable).add(name)
        ours = {"id": held.id, "lease": held.lease}
        values = {"step": step, "name": name, "result": text, "undoable": undoable, **ours}
        await self._only_ours("remember", held, tx, **values)

    def once_written(self, call: Callable[[], None], tx: Tx | None) -> None:
        """Call it now, or when the transaction commits: a step that is rolled back did not happen."""
        on = self._within(tx)
        if on is None:
            call()
        else:
            on.after_commit(call)

    def _note(self, name: str, value: Any, undoable: bool) -> None:
        if self._steps is not None:
            self._steps[name] = value
        if undoable:
            self._undoable.add(name)
            self._doubted.discard(name)

    async def take_signal(self, run_id: str, name: str, tx: Tx) -> tuple[Any] | None:
        """The oldest signal of that name, taken; None when there is none."""
        rows = await tx.write(self._store.bind("take_signal", id=run_id, name=name))
        return (await self._open(rows[0][0], "workflow_signal.payload", run_id, name),) if rows else None

    async def _open(self, stored: str | bytes | None, label: str, *ids: str) -> Any:
        """The value of a stored text; `Unreadable` when it does not open."""
        if stored is None:
            return None
        try:
            return decode_stored(await self._sealing.open(stored, label, *ids))
        except (DecryptionError, EncryptionNotConfigured):
            return Unreadable(DOES_NOT_OPEN)

    @property
    def undoing(self) -> str | None:
        """Why the run failed for good, if it did and only goes back."""
        failure = None if self._steps is None else self._steps.get(FAILED)
        if isinstance(failure, Unreadable):
            return "why it failed cannot be read"
        return None if failure is None else str(failure["reason"])

    @property
    def owed(self) -> set[str]:
        """Finished steps that are still to be taken back."""
        return self._undoable - self._compensated

    @property
    def lost(self) -> set[str]:
        """Finished steps whose result no attempt can read."""
        return {
            name for name, value in (self._steps or {}).items() if isinstance(value, Unstored | Unreadable)
        }

    def is_compensated(self, name: str) -> bool:
        return name in self._compensated

    async def begin_undo(self, held: Held, reason: str, max_attempts: int, more: int) -> None:
        """Write down that the run only goes back from here, and give that attempts of its own."""
        failure = {"reason": reason, "max_attempts": max_attempts}  # those that a retry has again
        async with transaction(self._store.adapter) as tx:
            await self._only_ours("allow", held, tx, id=held.id, lease=held.lease, more=more)
            await self.remember(held, FAILED, failure, tx)

    async def mark_compensated(self, held: Held, name: str) -> None:
        """Write down that a step is taken back; one that is not stored needs no more than that."""
        ours = {"id": held.id, "lease": held.lease}
        sql = self._store.bind("compensated", now=self._clock.now(), name=name, **ours)
        if not await self._ask(sql, None) and not await self._store.owns(held):
            await self._refuse(held)
        self._compensated.add(name)

    async def _only_ours(self, statement: str, held: Held, tx: Tx | None, **values: Any) -> None:
        sql = self._store.bind(statement, now=self._clock.now(), **values)
        if not await self._ask(sql, tx):
            await self._refuse(held)

    async def _refuse(self, held: Held) -> NoReturn:
        if await self._store.is_cancelled(held):
            raise RunCancelled(f"run {held.id} was cancelled")
        raise LeaseLost(f"run {held.id} was given to another worker")

    @property
    def in_transaction(self) -> bool:
        """Whether a step that is stored now belongs to the handler's open transaction."""
        return self._within(None) is not None

    def _within(self, tx: Tx | None) -> Tx | None:
        return tx or current_tx(self._store.adapter)

    def _ask(self, sql: Sql, tx: Tx | None) -> Awaitable[list[Row]]:
        """Ask until the database answers; an open transaction is lost with the first failure."""
        on = self._within(tx)
        return self._ask_again(sql) if on is None else self._store.write_on(on, sql)

    async def _ask_again(self, sql: Sql) -> list[Row]:
        failures = 0
        while True:
            try:
                return await self._store.write_on(self._store.adapter, sql)
            except RequestError as error:
                if not passes(error):
                    raise
                failures += 1
                if failures == 1:
                    log.warning("what a run remembers cannot be reached yet: %s", error, exc_info=error)
                await asyncio.sleep(_PAUSE(failures).total_seconds())


# The steps of one attempt that are under way: the attempt is over when they are.
#
# A step that has had its effect is remembered, even when the task that awaited it is cancelled: when a
# neighbour fails, the attempt runs out of time or the worker stops, a plain function still comes to its
# end on its thread, and what a step returned is still written down. Only then is an outcome settled, so
# that no retry begins what still goes on, and none repeats what was done.


GRACE = 30.0  # seconds for steps on the loop to come to their end, before they are cancelled
CANCEL_AGAIN = 1.0

Keep = Callable[[Any], Awaitable[Any]]


class OpenSteps:
    """What goes on in one attempt besides its handler."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any] | None] = {}  # by step: the task that is in it
        self._lasting: dict[str, asyncio.Task[Any]] = {}  # by step: what goes on without that task
        self._ended: asyncio.Event | None = None  # made when somebody waits for it

    def __len__(self) -> int:
        return len(self._tasks) + len(self._lasting)

    @contextmanager
    def open(self, name: str) -> Iterator[None]:
        """The step of that name is under way."""
        if name in self._tasks or name in self._lasting:
            raise DeclarationError(f"step {name!r} is under way already; side by side they need two names")
        self._tasks[name] = asyncio.current_task()
        try:
            yield
        finally:
            del self._tasks[name]
            self._tell()

    async def perform(self, name: str, call: partial[Any], keep: Keep | None) -> Any:
        """Call a function, async here and plain on a thread, and keep what it returns.

        Without `keep`, what it returns is given back as it is, and dropped when no task waits for it.
        """
        fence = Fence()
        try:
            if is_async(call):
                result = await call()
            else:
                result = await self._call_plain(name, call, keep)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # A task that somebody else started would pass the first two on to the loop, and end the process;
            # the third would close whoever awaits it.
            raise fence.absorb(error) from error
        if keep is None:
            return result
        try:
            return await keep(result)
        except asyncio.CancelledError:
            self._outlast(name, _keep(keep, result))  # to keep it twice does no harm
            raise

    async def _call_plain(self, name: str, call: Callable[[], Any], keep: Keep | None) -> Any:
        on_thread = begin_on_thread(call)
        try:
            result = await asyncio.wrap_future(on_thread)
        except asyncio.CancelledError:
            if not on_thread.cancelled():  # it had begun, and nothing stops it
                self._outlast(name, self._finish(on_thread, keep))
            raise
        return await result if inspect.isawaitable(result) else result

    async def _finish(self, on_thread: Future[Any], keep: Keep | None) -> None:
        result = await asyncio.wrap_future(on_thread)
        if keep is not None and not inspect.isawaitable(result):
            await keep(result)

    def _outlast(self, name: str, rest: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(rest)
        self._lasting[name] = task
        task.add_done_callback(partial(self._forget_lasting, name))

    def _forget_lasting(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._lasting[name]
        if not task.cancelled():
            task.exception()  # the step failed, or the run is not ours any more: the outcome shows it
        self._tell()

    def _tell(self) -> None:
        if self._ended is not None and not len(self):
            self._ended.set()

    async def end(self, grace: float) -> None:
        """Wait for the steps under way; after `grace` seconds they are cancelled."""
        if not len(self):
            return
        self._ended = asyncio.Event()
        await self._wait(grace)
        while len(self):
            for task in self._tasks.values():
                if task is not None:
                    task.cancel()
            await self._wait(CANCEL_AGAIN)

    async def _wait(self, seconds: float) -> None:
        assert self._ended is not None
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass

    def abandon(self) -> None:
        """The worker waits no longer: what goes on is lost as in a crash."""
        for task in self._lasting.values():
            task.cancel()


async def _keep(keep: Keep, result: Any) -> None:
    await keep(result)
