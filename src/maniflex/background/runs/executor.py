"""One attempt: call the handler, see what came of it, say what the row becomes.

`perform` gives an outcome and never raises; `settle` is pure, so every branch is a one-line test.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Threads
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, assert_never

import msgspec
from pydantic import ValidationError

from maniflex._backoff import Backoff
from maniflex._caller import asking
from maniflex.background.jsons import clean, decode, encode
from maniflex.background.runs.handlers import Handler
from maniflex.background.runs.rows import Change, Claimed
from maniflex.background.runs.run import FOREVER, RetryIn, Run, Suspend, Undone
from maniflex.background.threads import on_thread
from maniflex.errors import Fatal, LeaseLost, RequestError, RunCancelled, ValidationFailed

NO_HANDLER = "no_handler_registered"
RESULT = "result of the run"
_BACKOFF = Backoff()
_ENGINE = (__name__, "maniflex.background.runs.run", "maniflex.background.threads")

log = logging.getLogger("maniflex.work")


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned; `result` is JSON text."""

    result: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; `final` when no retry can mend it."""

    code: str
    message: str
    trace: str | None = None
    final: bool = False
    delay: timedelta | None = None
    taken_back: Sequence[str] = ()  # the steps that were, the last one first


@dataclass(frozen=True, slots=True)
class Paused:
    """The handler left the worker on purpose."""

    until: datetime
    waiting_for: str | None


@dataclass(frozen=True, slots=True)
class Released:
    """The worker had to stop first; the attempt does not count."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Cancelled or given to another worker: there is nothing of ours to write."""


Outcome: TypeAlias = Done | Failed | Paused | Released | Dropped


def settle(
    run: Claimed, outcome: Outcome, backoff: Callable[[int], timedelta], now: datetime
) -> Change | None:
    """What the row of a run that did not succeed becomes; None when it is not ours to change."""
    match outcome:
        case Done() | Dropped():
            return None
        case Paused(until, waiting_for):
            data = {"attempt": run.attempt, "until": until.isoformat(), "waiting_for": waiting_for}
            return Change(
                run.held, "pending", "suspended", _json(data), until, unspent=1, waiting_for=waiting_for
            )
        case Released():
            return released(run, now)
        case Failed() if outcome.final or run.attempt >= run.max_attempts:
            return _failed(run, outcome, "failed", "failed", None)
        case Failed():
            delay = outcome.delay if outcome.delay is not None else _pause(backoff, run.attempt)
            return _failed(run, outcome, "pending", "retried", _later(now, delay))
        case _:
            assert_never(outcome)


def released(run: Claimed, now: datetime) -> Change:
    """The row of a run that was not worked on, or not to its end, through no fault of its own."""
    return Change(run.held, "pending", "released", _json({"attempt": run.attempt}), now, unspent=1)


def _pause(backoff: Callable[[int], timedelta], failures: int) -> timedelta:
    """What the handler's policy says, or the usual when it fails itself."""
    try:
        pause = backoff(failures)
        if not isinstance(pause, timedelta):
            raise TypeError(f"a backoff gives a timedelta, not {pause!r}")
    except Exception as error:
        log.error("the backoff of a handler failed: %s", error, exc_info=error)
        return _BACKOFF(failures)
    return pause


def _later(now: datetime, delay: timedelta) -> datetime:
    try:
        return now + delay
    except OverflowError:
        return FOREVER


def _failed(run: Claimed, outcome: Failed, status: str, event: str, run_at: datetime | None) -> Change:
    error = {"code": outcome.code, "message": outcome.message, "attempt": run.attempt}
    if outcome.trace:
        error["trace"] = outcome.trace
    data: dict[str, Any] = {"attempt": run.attempt, "error": outcome.message}
    if run_at is not None:
        data["run_at"] = run_at.isoformat()
    if outcome.taken_back:
        data["taken_back"] = list(outcome.taken_back)
    last_error = outcome.code if outcome.code == NO_HANDLER else outcome.message
    return Change(run.held, status, event, _json(data), run_at, 0, _json(error), last_error)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def read_payload(handler: Handler, text: str) -> Any:
    """The payload as the handler wants it; it raises when it does not fit."""
    value = decode(text)
    if handler.payload is None:
        return value
    return handler.payload.validate_python(value)


async def perform(run: Run, handler: Handler, timeout: float | None, threads: Threads) -> Outcome:
    """Call the handler and name what came of it."""
    asking.set(run)  # what it submits is on behalf of whoever submitted it
    try:
        if run.attempt > 1 and handler.is_async:
            await run.recall()  # it may be here only to go back
        if handler.is_async and timeout is None:
            result = await handler.fn(run)
        else:
            result = await _called(run, handler, timeout, threads)
        if run.handed_back and not handler.is_async:
            return Released()  # told to stop, it may have returned half way
        if run.undoing is not None:  # what failed then would not fail now; half is taken back already
            raise Undone(run.undoing)
        return Done(None if result is None else encode(result, RESULT))
    except Suspend as pause:
        return Paused(pause.until, pause.waiting_for)
    except (RunCancelled, LeaseLost):
        return Released() if run.handed_back else Dropped()
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            return Released()
        return await _after_failure(run, failure(error))
    except Exception as error:
        return await _after_failure(run, failure(error))


def _is_being_cancelled() -> bool:
    """Whether somebody cancels this task; a handler may also raise CancelledError all by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _called(run: Run, handler: Handler, timeout: float | None, threads: Threads) -> Any:
    if not handler.is_async:
        return await _on_thread(run, handler, timeout, threads)
    try:
        async with asyncio.timeout(timeout) as limit:
            return await handler.fn(run)
    except TimeoutError:
        if limit.expired():
            raise _TooLong(timeout or 0) from None
        raise


async def _on_thread(run: Run, handler: Handler, timeout: float | None, threads: Threads) -> Any:
    """A plain function cannot be stopped: past its time it is told so, and is over when it returns."""
    working = on_thread(partial(handler.fn, run), threads)
    done, _ = await asyncio.wait((working,), timeout=timeout)
    if not done:
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
    """What is kept of an exception."""
    message = clean(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    trace = clean("".join(traceback.format_exception(type(error), error, _theirs(error), limit=-12)), 8000)
    match error:
        case RetryIn():
            return Failed("retry", clean(str(error)), delay=error.delay)
        case Undone():
            return Failed("saga_failed", clean(str(error)), final=True)
        case Fatal():
            return Failed("fatal", message, trace, final=True)
        case _TooLong():
            return Failed("timeout", clean(str(error)))
        case ValidationFailed() if error.details and _names_result(error):
            # What the handler did is done; doing it again would not make its result storable.
            return Failed("result_not_json", clean(error.message), final=True)
        case _:
            return Failed("error", message, trace)


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
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = ((".".join(str(part) for part in one["loc"]), one["msg"]) for one in found)
        said = "; ".join(f"{place}: {message}" if place else message for place, message in places)
    return Failed("payload_does_not_fit", clean(f"the payload does not fit: {said}"), final=True)


async def _after_failure(run: Run, failed: Failed) -> Outcome:
    """A run that fails for good takes its steps back first, if it knows how."""
    if run.undoing is None and not (failed.final or run.attempt >= run.max_attempts):
        return failed
    try:
        return await _turned_back(run, failed) or await _taken_back(run, failed)
    except (RunCancelled, LeaseLost):
        return Dropped()
    except asyncio.CancelledError:
        return Released()
    except Exception as error:  # tried again, with attempts of its own
        again = failure(error)
        return Failed("compensation_failed", again.message, again.trace)


async def _turned_back(run: Run, failed: Failed) -> Outcome | None:
    """Another attempt, just to go back, when this one did not get to all that there is to take back."""
    try:
        begun = await run.turn_back(failed.message)
    except RequestError as error:
        if not error.retryable:
            raise
        log.warning("run %s failed for good, and its steps cannot be seen yet: %s", run.id, error)
        return Paused(run.later(), None)
    if not run.unreached or run.attempt >= run.max_attempts:
        return None
    return Failed(failed.code, failed.message, failed.trace, delay=timedelta(0) if begun else failed.delay)


async def _taken_back(run: Run, failed: Failed) -> Outcome:
    await run.compensate()
    code = "compensation_failed" if run.unreached else failed.code
    return Failed(code, failed.message, failed.trace, final=True, taken_back=run.taken_back)
