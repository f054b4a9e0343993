"""One run in a worker's hands: from its claim, through its handler, to the outcome it leaves for the settler.

`perform` calls the handler, gives an outcome and never raises.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor as Threads
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from maniflex._caller import asking
from maniflex._clock import Backoff
from maniflex._fence import Fence, describe
from maniflex._json import clean, decode, encode, unreadable_because
from maniflex._logging import guard_logger
from maniflex._threads import on_thread
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.handlers import RunHandler
from maniflex.background.runs.outcomes import (
    NO_HANDLER,
    NO_RESULT,
    NOT_JSON,
    NOT_TAKEN_BACK,
    RESULT,
    TOO_LONG,
    UNDECRYPTABLE,
    Done,
    Dropped,
    Failed,
    Outcome,
    Paused,
    Released,
    TooLong,
    Undone,
    bad_payload,
    failure_or_release,
    is_lost,
    later,
    log_failure,
    pause_of,
    settle,
)
from maniflex.background.runs.rows import ClaimedRun, RunChange
from maniflex.background.runs.run import Run
from maniflex.background.runs.settler import Settler
from maniflex.background.runs.step_memory import GRACE, OpenSteps
from maniflex.background.runs.store import passes
from maniflex.db.current import ReplicaReader, current_reader
from maniflex.encryption.sealed_json import WorkSealing, is_sealed_json, key_id_in
from maniflex.errors import DecryptionError, EncryptionNotConfigured, RequestError

AWAY = timedelta(seconds=5)  # after which a key provider that did not answer is asked again

log = guard_logger(logging.getLogger("maniflex.work"))


class AttemptHost(Protocol):
    """The worker of an attempt, as far as an attempt needs it."""

    engine: RunEngine
    settler: Settler

    @property
    def threads(self) -> Threads:
        """Where plain functions run."""

    def note_end(self, attempt: Attempt) -> None:
        """The attempt is over."""


class Attempt:
    """The task that works on a run; it has begun when this is made."""

    __slots__ = ("_host", "claimed", "run", "task")

    def __init__(self, host: AttemptHost, claimed: ClaimedRun, context: Context) -> None:
        self._host = host
        self.claimed = claimed
        self.run: Run | None = None  # what the handler was given
        self.task = asyncio.create_task(self._work(), context=context)
        self.task.add_done_callback(self._on_end)

    def tell_to_stop(self) -> None:
        """The worker cannot wait: cancel what can be cancelled, and tell the rest."""
        handler = self._host.engine.handlers.get(self.claimed.type)
        if self.run is not None:
            self.run.cancelled = self.run.handed_back = True  # all a plain function can be told
        if self.run is None or handler is None or handler.is_async:
            self.task.cancel()

    def notice_loss(self) -> None:
        """Called on the lease keeper's thread when a renewal finds that the run is not ours any more."""
        if self.run is not None:
            self.run.cancelled = True
        self.task.get_loop().call_soon_threadsafe(self._examine)

    def _examine(self) -> None:
        if not self.task.done():
            self._host.engine.spawn(self._stop_if_lost())

    async def _stop_if_lost(self) -> None:
        if not self.task.done() and not await self._host.engine.store.is_cancelled(self.claimed.held):
            self.task.cancel()  # what it goes on to do, another worker does already

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it began
            self._host.settler.release(self.claimed)
        self._host.note_end(self)

    async def _work(self) -> None:
        engine, settler, row = self._host.engine, self._host.settler, self.claimed
        handler = engine.handlers.get(row.type)
        outcome: Outcome
        try:
            outcome = await self._outcome(handler)
        except BaseException as error:  # no handler's, those are outcomes: the engine failed, or is closed
            engine.logger.error("run %s was interrupted", row.id, exc_info=error)
            outcome = await self._after_interruption(error)
        row.busy = engine.clock.monotonic() - row.begun
        if isinstance(outcome, Failed):
            self._tell(outcome)
        try:
            await self._hand_over(outcome, handler.backoff if handler else Backoff())
        except (Exception, asyncio.CancelledError) as error:  # a key provider elsewhere is away
            engine.logger.warning("what came of run %s cannot be encrypted yet: %s", row.id, describe(error))
            again = settle(row, Paused(later(engine.clock.now(), AWAY), None), Backoff(), engine.clock.now())
            assert again is not None
            settler.change(row, again)

    async def _hand_over(self, outcome: Outcome, backoff: Callable[[int], timedelta]) -> None:
        """Give the settler what came of it, as it is to be stored."""
        engine, settler, row = self._host.engine, self._host.settler, self.claimed
        if isinstance(outcome, Done):
            result = outcome.result
            if result is not None:
                result = await engine.sealing.keep(result, row.key_id, "workflow_run.result", row.id)
            settler.succeed(row, result)
            return
        change = settle(row, outcome, backoff, engine.clock.now())
        if change is None:
            settler.let_go(row)
        else:
            settler.change(row, await sealed_change(engine.sealing, row, change))

    async def _outcome(self, handler: RunHandler | None) -> Outcome:
        engine, row = self._host.engine, self.claimed
        if row.until is not None and engine.clock.now() >= row.until:
            # We were stopped, or the loop was blocked, before we could begin: another worker may have.
            try:
                if not await engine.store.owns(row.held):
                    return Dropped()
            except (Exception, asyncio.CancelledError):
                return Released()  # if it still is ours
        if handler is None:
            missing = Failed(NO_HANDLER, f"no handler is registered for {row.type}", final=True)
            return await self._hopeless(missing)
        early_outcome = await self._open_payload(handler)
        if early_outcome is not None:
            return early_outcome
        fence = None if handler.payload is None else Fence()  # without a type, no code of users runs
        try:
            payload = read_payload(handler, row.payload)
        except BaseException as error:  # a validator may raise anything
            return await self._hopeless(bad_payload((fence or Fence()).absorb(error)))
        self.run = run = Run(row, payload, engine)
        seconds = row.timeout
        if seconds is None and handler.timeout is not None:
            seconds = handler.timeout.total_seconds()
        if engine.tracing is None:
            outcome = await perform(run, handler, seconds, self._host, self.task)
        else:
            with engine.tracing.run(run) as note_outcome:
                outcome = await perform(run, handler, seconds, self._host, self.task)
                note_outcome(_without_text(row, outcome))
        row.max_attempts = run.max_attempts  # more when it began to take its steps back
        return outcome

    async def _open_payload(self, handler: RunHandler) -> Outcome | None:
        """Open a payload that is stored sealed; what came of the run where that cannot be."""
        row, sealing = self.claimed, self._host.engine.sealing
        row.key_id = handler.encrypted or key_id_in(row.payload)
        if row.payload is None or not is_sealed_json(row.payload):
            if handler.encrypted is not None and not sealing.keys.takes_plain:
                return await self._give_up("it is plain, which encryption_legacy refuses")
            return None
        try:
            row.payload = str(await sealing.open(row.payload, "workflow_run.payload", row.id))
        except (DecryptionError, EncryptionNotConfigured) as error:
            return await self._give_up(error.problem)
        except RequestError as error:
            if not passes(error):
                raise
            log.warning("the payload of run %s cannot be opened yet: %s", row.id, error)
            return Paused(later(self._host.engine.clock.now(), AWAY), None)
        return None

    async def _give_up(self, problem: str) -> Outcome:
        """A run whose payload does not open, which holds for its key too: its error is stored as it is."""
        self.claimed.key_id = None
        return await self._hopeless(
            Failed(UNDECRYPTABLE, f"the payload does not open: {problem}", final=True)
        )

    async def _after_interruption(self, error: BaseException) -> Outcome:
        """An attempt that the engine failed is one that failed: its steps end, and may be taken back."""
        failure = Failed("interrupted", clean(describe(error)))
        if self.run is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            return failure
        try:
            outcome = await conclude(self.run, failure)
        except BaseException as again:
            self._host.engine.logger.error("run %s was interrupted again", self.claimed.id, exc_info=again)
            return failure
        self.claimed.max_attempts = self.run.max_attempts
        return outcome

    async def _hopeless(self, failure: Failed) -> Outcome:
        """A run that fails because there is nothing to call with its payload."""
        return await without_handler(Run(self.claimed, None, self._host.engine), failure)

    def _tell(self, failure: Failed) -> None:
        row = self.claimed
        tries = None if failure.final or row.attempt >= row.max_attempts else row.max_attempts
        work, outcome = f"run {row.id} ({row.type})", _without_text(row, failure)
        log_failure(self._host.engine.logger, work, outcome, row.attempt, tries)


End = TypeVar("End", bound=Outcome)


def _without_text(run: ClaimedRun, outcome: End) -> End:
    """The outcome as logs and traces have it: the text of an error may quote what is encrypted."""
    if run.key_id is None or not isinstance(outcome, Failed):
        return outcome
    return replace(outcome, message=outcome.code, trace=None)


async def sealed_change(sealing: WorkSealing, run: ClaimedRun, change: RunChange) -> RunChange:
    """The change of a run as it is stored: the events of an encrypted one have the code of an error alone."""
    if run.key_id is None or change.error is None or change.last_error is None:
        return change
    data = decode(change.data) if change.data else {}
    data.pop("error", None)
    return replace(
        change,
        data=encode(data, "data"),
        error=await sealing.keep(change.error, run.key_id, "workflow_run.error", run.id),
        last_error=await sealing.keep_text(change.last_error, run.key_id, "workflow_run.last_error", run.id),
    )


# -- calling the handler


def read_payload(handler: RunHandler, text: str | None) -> Any:
    """The payload as the handler wants it; it raises when it does not fit."""
    if text is None:
        raise ValueError("what is stored is not text")
    try:
        return decode(text) if handler.payload is None else handler.payload.read(text)
    except Exception as error:
        raise unreadable_because(text, error) from error.__cause__


async def perform(
    run: Run, handler: RunHandler, timeout: float | None, host: AttemptHost, task: asyncio.Task[Any]
) -> Outcome:
    """Call the handler in this task and name what came of it, once none of its steps goes on any more."""
    asking.set(run)  # what it submits is on behalf of the caller who submitted the run
    # It must see what was committed before it was claimed: the record that it was submitted for.
    current_reader.set(ReplicaReader(written_at=time.monotonic()))
    outcome: Outcome
    try:
        if run.attempt > 1 and handler.is_async:
            await run.recall()  # it may be here only to go back
        if handler.is_async and timeout is None:
            result = await handler.fn(run)
        else:
            result = await _call_handler(run, handler, timeout, host)
        if result is None and run.is_plain:  # most runs, of which there may be thousands a second
            run.over = True
            return NO_RESULT
        outcome = _outcome_of_return(run, handler, result)
    except BaseException as error:
        if is_lost(error):
            outcome = Released() if run.handed_back else Dropped()
        else:
            outcome = pause_of(error) or failure_or_release(Fence(task), error)
    return await conclude(run, outcome)


def _outcome_of_return(run: Run, handler: RunHandler, result: Any) -> Done | Released:
    if run.handed_back and not handler.is_async:
        return Released()  # told to stop, it may have returned half way
    if run.undoing is not None:  # what failed then would not fail now; half is taken back already
        raise Undone(run.undoing)
    return NO_RESULT if result is None else Done(encode(result, RESULT, to_seal=run.is_encrypted))


async def conclude(run: Run, outcome: Outcome) -> Outcome:
    """What an attempt comes to whose handler is through: its steps have ended, or are taken back."""
    run.over = True
    if run.open_steps is not None:
        outcome = await _end_steps(run, run.open_steps, outcome)
    if isinstance(outcome, Failed):
        return await _after_failure(run, outcome)
    if isinstance(outcome, Released) and run.undoing is not None:
        return Released(spent=True)  # the next attempt has to know that it only goes back
    return outcome


async def _end_steps(run: Run, steps: OpenSteps, outcome: Outcome) -> Outcome:
    """What an attempt comes to whose handler left steps under way, once they have ended.

    They are given time to, so that what they do is remembered, except where the worker has none.
    """
    timed_out = isinstance(outcome, Failed) and outcome.code == TOO_LONG
    run.cancelled = run.cancelled or timed_out  # all that a plain function on its thread can be told
    hasty = isinstance(outcome, Released | Dropped)
    try:
        try:
            await steps.end(0 if hasty else GRACE)
        except asyncio.CancelledError:
            outcome = Released()
            await steps.end(0)
    except asyncio.CancelledError:  # once more: the process ends, and with it what still runs
        steps.abandon()
        return Dropped()
    if timed_out:
        run.cancelled = run.handed_back
    return outcome


async def _call_handler(run: Run, handler: RunHandler, timeout: float | None, host: AttemptHost) -> Any:
    if not handler.is_async:
        return await _on_thread(run, handler, timeout, host.threads)
    try:
        async with asyncio.timeout(timeout) as limit:
            return await handler.fn(run)
    except TimeoutError:
        if limit.expired():
            raise TooLong(timeout or 0) from None
        raise


async def _on_thread(run: Run, handler: RunHandler, timeout: float | None, threads: Threads) -> Any:
    """A plain function cannot be stopped: past its time it is told so, and is over when it returns."""
    working = on_thread(partial(handler.fn, run), threads)
    finished_calls, _ = await asyncio.wait((working,), timeout=timeout)
    if not finished_calls:
        run.cancelled = True
        await asyncio.wait((working,))
        run.cancelled = False
        working.exception()
        raise TooLong(timeout or 0)
    return working.result()


# -- going back


async def _after_failure(run: Run, outcome: Failed) -> Outcome:
    """A run that fails for good takes its steps back first, if it knows how."""
    if run.unstored and not outcome.final:  # what another attempt would need to take it back is only here
        message = clean("; ".join((*run.unstored.values(), outcome.message)))
        outcome = replace(outcome, code=NOT_JSON, message=message, final=True)
    if run.undoing is None and not (outcome.final or run.attempt >= run.max_attempts):
        return outcome
    fence = Fence()
    try:
        return await _turn_back(run, outcome) or await _take_back(run, outcome)
    except BaseException as error:
        if is_lost(error):
            return Dropped()
        again = failure_or_release(fence, error)
        if isinstance(again, Released):
            back, steps = Released(spent=run.undoing is not None), run.open_steps
            return back if steps is None else await _end_steps(run, steps, back)
        # Tried again, with attempts of its own.
        return Failed(NOT_TAKEN_BACK, again.message, again.trace, delay=run.undo_pause())


async def without_handler(run: Run, outcome: Failed) -> Outcome:
    """A final failure of a run whose handler cannot be called, and with it nothing that takes steps back."""
    try:
        await run.recall()
    except RequestError as error:
        if not passes(error):
            raise
        return Paused(run.later(), None)
    return _with_steps_left(outcome, run.unreached) if run.unreached else outcome


def _with_steps_left(outcome: Failed, steps: Iterable[str]) -> Failed:
    message = clean(f"{outcome.message}; these steps are not taken back: {', '.join(sorted(steps))}")
    return replace(outcome, code=NOT_TAKEN_BACK, message=message, final=True)


async def _turn_back(run: Run, outcome: Failed) -> Outcome | None:
    """Another attempt, just to go back, when this one did not get to all that there is to take back."""
    try:
        has_turned = await run.turn_back(outcome.message)
    except RequestError as error:
        if not passes(error):
            raise
        log.warning("run %s failed for good, and its steps cannot be seen yet: %s", run.id, error)
        return Paused(run.later(), None, spent=True)
    if not run.reachable or run.attempt >= run.max_attempts:
        return None
    await run.compensate(run.unstored)
    return Failed(
        outcome.code, outcome.message, outcome.trace, delay=timedelta(0) if has_turned else outcome.delay
    )


async def _take_back(run: Run, outcome: Failed) -> Outcome:
    await run.compensate()
    final_outcome = replace(outcome, final=True, delay=None, taken_back=run.taken_back)
    return _with_steps_left(final_outcome, run.unreached) if run.unreached else final_outcome
