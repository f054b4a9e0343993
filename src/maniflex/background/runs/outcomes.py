"""What one attempt at a run came to, and what its row becomes.

`settle` is pure, so every branch is a one-line test.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, TypeAlias, assert_never

from pydantic import ValidationError

from maniflex._clock import Backoff
from maniflex._fence import Fence, describe, leaves_of, text_of
from maniflex._json import HalfCharacter, clean, encode_plain
from maniflex._logging import guard_logger
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import ClaimedRun, RunChange
from maniflex.errors import Fatal, LeaseLost, RunCancelled, ValidationFailed

FOREVER = datetime(9999, 12, 31, tzinfo=UTC)
UNDECRYPTABLE = "undecryptable"  # its payload is encrypted, and does not open
NO_HANDLER = "no_handler_registered"
TOO_LONG = "timeout"
NOT_TAKEN_BACK = "compensation_failed"
NOT_JSON = "result_not_json"
RESULT = "result of the run"
_BACKOFF = Backoff()
_ENGINE = (
    "maniflex.background.runs.attempt",
    "maniflex.background.runs.run",
    "maniflex.background.runs.step_memory",
    "maniflex._threads",
)

log = guard_logger(logging.getLogger("maniflex.work"))

# -- outcomes


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned; `result` is JSON text."""

    result: str | None


NO_RESULT = Done(None)


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
    spent: bool = False  # not on purpose: the way back could not be begun, or it is not known whether it was


@dataclass(frozen=True, slots=True)
class Released:
    """The worker had to stop first; the attempt does not count, unless it was on its way back."""

    spent: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """Cancelled or given to another worker: there is nothing of ours to write."""


Outcome: TypeAlias = Done | Failed | Paused | Released | Dropped

# -- what a handler raises, knowingly or not, to leave its worker: a pause, a retry, the way back


class Suspend(BaseException):
    """The handler leaves the worker until a time or a signal; no `except Exception` stops it."""

    def __init__(self, until: datetime, waiting_for: str | None = None) -> None:
        self.until, self.waiting_for = until, waiting_for
        super().__init__()


class RetryIn(Exception):
    """The attempt failed, and the handler says when to try again."""

    def __init__(self, delay: timedelta, reason: str) -> None:
        self.delay = delay
        super().__init__(reason)


class Undone(Exception):
    """Raised where a failed saga would go forward again: it only goes back from here."""


class TooLong(Exception):
    """The attempt took longer than its timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the attempt took longer than {seconds:g} s")


# -- what the row becomes


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
                Status.PENDING,
                "suspended",
                encode_plain(data),
                until,
                0 if spent else 1,
                waiting_for=waiting_for,
            )
        case Released(spent):
            return release_change(run, now, unspent=0 if spent else 1)
        case Failed() if outcome.final or run.attempt >= run.max_attempts:
            return _failure_change(run, outcome, Status.FAILED, "failed", None)
        case Failed():
            delay = outcome.delay if outcome.delay is not None else pause_after(backoff, run.attempt)
            return _failure_change(run, outcome, Status.PENDING, "retried", later(now, delay))
        case _:
            assert_never(outcome)


def release_change(run: ClaimedRun, now: datetime, unspent: int = 1) -> RunChange:
    """The row of a run that was not worked on, or not to its end, through no fault of its own."""
    return RunChange(
        run.held, Status.PENDING, "released", encode_plain({"attempt": run.attempt}), now, unspent=unspent
    )


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
    run: ClaimedRun, outcome: Failed, status: Status, event: str, run_at: datetime | None
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
    return RunChange(run.held, status, event, encode_plain(data), run_at, 0, encode_plain(error), last_error)


def log_failure(logger: logging.Logger, work: str, failure: Failed, attempt: int, tries: int | None) -> None:
    """Log the failure of an attempt; `tries` is how many there are, None when this was the last."""
    over = tries is None
    logger.log(
        logging.ERROR if over else logging.WARNING,
        "%s failed in attempt %d%s: %s",
        work,
        attempt,
        " and is given up" if over else f" of {tries} and is tried again",
        f"{failure.message}\n{failure.trace}" if over and failure.code == "error" else failure.message,
    )


# -- what an exception means


def is_lost(error: BaseException) -> bool:
    """Whether the run is not ours any more."""
    return any(isinstance(leaf, RunCancelled | LeaseLost) for leaf in leaves_of(error))


def pause_of(error: BaseException) -> Paused | None:
    """The pause a handler makes, or several tasks of its group at once; not where one of them failed."""
    pauses = [leaf for leaf in leaves_of(error) if isinstance(leaf, Suspend)]
    if not pauses or len(pauses) < sum(1 for _ in leaves_of(error)):
        return None
    waits = (pause.waiting_for for pause in pauses if pause.waiting_for is not None)
    return Paused(min(pause.until for pause in pauses), next(waits, None))


def failure_or_release(fence: Fence, error: BaseException) -> Failed | Released:
    """What an exception out of a handler means; a worker that stops cancels the task."""
    try:
        fence.absorb(error)
    except asyncio.CancelledError:
        return Released()
    return failure(error)


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
        case TooLong():
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
