"""One attempt: call the handler, see what came of it, say what the row becomes.

`perform` gives an outcome and never raises; `settle` is pure, so every branch is a one-line test.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Executor as Threads
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, assert_never

import msgspec
from pydantic import ValidationError

from maniflex._backoff import Backoff
from maniflex._caller import asking
from maniflex._fence import Fence, describe, leaves_of, text_of
from maniflex._logging import guard_logger
from maniflex.background.json_text import HalfCharacter, clean, decode, encode, unreadable_because
from maniflex.background.runs.endings import RetryIn, Suspend, Undone
from maniflex.background.runs.handlers import RunHandler
from maniflex.background.runs.open_steps import GRACE, OpenSteps
from maniflex.background.runs.outcomes import NO_RESULT, Done, Dropped, Failed, Outcome, Paused, Released
from maniflex.background.runs.rows import ClaimedRun, RunChange
from maniflex.background.runs.run import FOREVER, Run
from maniflex.background.runs.store import passes
from maniflex.background.threads import on_thread
from maniflex.errors import Fatal, LeaseLost, RequestError, RunCancelled, ValidationFailed

NO_HANDLER = "no_handler_registered"
TOO_LONG = "timeout"
NOT_TAKEN_BACK = "compensation_failed"
NOT_JSON = "result_not_json"
RESULT = "result of the run"
_BACKOFF = Backoff()
_ENGINE = (
    __name__,
    "maniflex.background.runs.run",
    "maniflex.background.runs.open_steps",
    "maniflex.background.threads",
)

log = guard_logger(logging.getLogger("maniflex.work"))


def settle(
    run: ClaimedRun, outcome: Outcome, backoff: Callable[[int], timedelta], now: datetime
) -> RunChange | None:
    """What the row of a run that did not succeed becomes; None when it is not ours to change."""
    match outcome:
        case Done() | Dropped():
            return None
        case Paused(until, waiting_for, spent):
            data = {"attempt": run.attempt, "until": until.isoformat(), "waiting_for": waiting_for}
            return RunChange(
                run.held,
                "pending",
                "suspended",
                _json(data),
                until,
                0 if spent else 1,
                waiting_for=waiting_for,
            )
        case Released(spent):
            return release_change(run, now, unspent=0 if spent else 1)
        case Failed() if outcome.final or run.attempt >= run.max_attempts:
            return _failure_change(run, outcome, "failed", "failed", None)
        case Failed():
            delay = outcome.delay if outcome.delay is not None else pause_after(backoff, run.attempt)
            return _failure_change(run, outcome, "pending", "retried", later(now, delay))
        case _:
            assert_never(outcome)


def release_change(run: ClaimedRun, now: datetime, unspent: int = 1) -> RunChange:
    """The row of a run that was not worked on, or not to its end, through no fault of its own."""
    return RunChange(run.held, "pending", "released", _json({"attempt": run.attempt}), now, unspent=unspent)


def pause_after(backoff: Callable[[int], timedelta], failures: int) -> timedelta:
    """What the handler's policy says, or the usual when it fails itself."""
    try:
        pause = backoff(failures)
        if not isinstance(pause, timedelta):
            raise TypeError(f"a backoff gives a timedelta, not {pause!r}")
    except BaseException as error:  # nothing is awaited in it, so none of this is meant for us
        log.error("the backoff of a handler failed: %s", describe(error), exc_info=error)
        return _BACKOFF(failures)
    return pause


def later(now: datetime, delay: timedelta) -> datetime:
    """The time after a delay, however long."""
    try:
        return now + delay
    except OverflowError:
        return FOREVER


def _failure_change(
    run: ClaimedRun, outcome: Failed, status: str, event: str, run_at: datetime | None
) -> RunChange:
    error = {"code": outcome.code, "message": outcome.message, "attempt": run.attempt}
    if outcome.trace:
        error["trace"] = outcome.trace
    data: dict[str, Any] = {"attempt": run.attempt, "code": outcome.code, "error": outcome.message}
    if run_at is not None:
        data["run_at"] = run_at.isoformat()
    if outcome.taken_back:
        data["taken_back"] = list(outcome.taken_back)
    last_error = outcome.code if outcome.code == NO_HANDLER else outcome.message
    return RunChange(run.held, status, event, _json(data), run_at, 0, _json(error), last_error)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def read_payload(handler: RunHandler, text: str | None) -> Any:
    """The payload as the handler wants it; it raises when it does not fit."""
    if text is None:
        raise ValueError("what is stored is not text")
    try:
        return decode(text) if handler.payload is None else handler.payload.read(text)
    except Exception as error:
        raise unreadable_because(text, error) from error.__cause__


async def perform(
    run: Run, handler: RunHandler, timeout: float | None, threads: Threads, task: asyncio.Task[Any]
) -> Outcome:
    """Call the handler in this task and name what came of it, once none of its steps goes on any more."""
    asking.set(run)  # what it submits is on behalf of the caller who submitted the run
    fence = Fence(task)
    outcome: Outcome
    try:
        if run.attempt > 1 and handler.is_async:
            await run.recall()  # it may be here only to go back
        if handler.is_async and timeout is None:
            result = await handler.fn(run)
        else:
            result = await _call_handler(run, handler, timeout, threads)
        fence.end_if_forked()
        if result is None and run.is_plain:  # most runs, of which there may be thousands a second
            run.over = True
            return NO_RESULT
        outcome = _outcome_of_return(run, handler, result)
    except BaseException as error:
        if _is_lost(error):
            outcome = Released() if run.handed_back else Dropped()
        else:
            outcome = _pause(error) or _failure_or_release(fence, error)
    return await conclude(run, outcome)


def _outcome_of_return(run: Run, handler: RunHandler, result: Any) -> Done | Released:
    if run.handed_back and not handler.is_async:
        return Released()  # told to stop, it may have returned half way
    if run.undoing is not None:  # what failed then would not fail now; half is taken back already
        raise Undone(run.undoing)
    return NO_RESULT if result is None else Done(encode(result, RESULT))


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


def _is_lost(error: BaseException) -> bool:
    """Whether the run is not ours any more."""
    return any(isinstance(leaf, RunCancelled | LeaseLost) for leaf in leaves_of(error))


def _pause(error: BaseException) -> Paused | None:
    """The pause a handler makes, or several tasks of its group at once; not where one of them failed."""
    pauses = [leaf for leaf in leaves_of(error) if isinstance(leaf, Suspend)]
    if not pauses or len(pauses) < sum(1 for _ in leaves_of(error)):
        return None
    waits = (pause.waiting_for for pause in pauses if pause.waiting_for is not None)
    return Paused(min(pause.until for pause in pauses), next(waits, None))


def _failure_or_release(fence: Fence, error: BaseException) -> Failed | Released:
    """What an exception out of a handler means; a worker that stops cancels the task."""
    try:
        fence.absorb(error)
    except asyncio.CancelledError:
        return Released()
    return failure(error)


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


async def _call_handler(run: Run, handler: RunHandler, timeout: float | None, threads: Threads) -> Any:
    if not handler.is_async:
        return await _on_thread(run, handler, timeout, threads)
    try:
        async with asyncio.timeout(timeout) as limit:
            return await handler.fn(run)
    except TimeoutError:
        if limit.expired():
            raise _TooLong(timeout or 0) from None
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
        raise _TooLong(timeout or 0)
    return working.result()


class _TooLong(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"the attempt took longer than {seconds:g} s")


def failure(error: BaseException) -> Failed:
    """The outcome of an attempt whose handler raised `error`."""
    trace = clean("".join(traceback.format_exception(type(error), error, _theirs(error), limit=-12)), 8000)
    decisive = _decisive(error)
    match decisive:
        case RetryIn():
            return Failed("retry", clean(text_of(decisive)), delay=decisive.delay)
        case Undone():
            return Failed("saga_failed", clean(text_of(decisive)), final=True)
        case Fatal():  # its text alone: callers see it, and not what failed beside it
            return Failed("fatal", clean(describe(decisive)), trace, final=True)
        case _TooLong():
            return Failed(TOO_LONG, clean(str(decisive)))
        case ValidationFailed() if _names_result(decisive):
            # What the handler did is done; doing it again would not make its result storable.
            return Failed(NOT_JSON, clean(decisive.message), final=True)
        case _:
            return Failed("error", clean(describe(error)), trace)


def _decisive(error: BaseException) -> BaseException:
    """What a group comes to: one that no retry can mend, or the longest wait if all ask for one."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf for leaf in leaves_of(error) if not isinstance(leaf, Suspend)]
    for leaf in leaves:
        if isinstance(leaf, Undone | Fatal) or (isinstance(leaf, ValidationFailed) and _names_result(leaf)):
            return leaf
    retries = [leaf for leaf in leaves if isinstance(leaf, RetryIn)]
    return max(retries, key=lambda retry: retry.delay) if retries and retries == leaves else error


def _theirs(error: BaseException) -> TracebackType | None:
    """Where the handler's own part of the way begins; all of it when there is none."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__") in _ENGINE:
        frame = frame.tb_next
    return frame or error.__traceback__


def _names_result(error: ValidationFailed) -> bool:
    details: Any = error.details
    return isinstance(details, list) and any(
        str(d.get("field", "")).startswith("result of ") for d in details
    )


def bad_payload(error: Exception) -> Failed:
    """What does not fit, by name; the values themselves stay out of errors and logs."""
    text = str(error) if isinstance(error, HalfCharacter) else describe(error)
    if isinstance(error, ValidationError):
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)
        places = ((".".join(str(part) for part in one["loc"]), one["msg"]) for one in mistakes)
        text = "; ".join(f"{place}: {message}" if place else message for place, message in places)
    return Failed("payload_does_not_fit", clean(f"the payload does not fit: {text}"), final=True)


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
        if _is_lost(error):
            return Dropped()
        again = _failure_or_release(fence, error)
        if isinstance(again, Released):
            back, steps = Released(spent=run.undoing is not None), run.open_steps
            return back if steps is None else await _end_steps(run, steps, back)
        # Tried again, with attempts of its own.
        return Failed(NOT_TAKEN_BACK, again.message, again.trace)


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
