"""The options of a run: each as it is stored, or `ValidationFailed` naming it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypedDict

from maniflex._names import did_you_mean
from maniflex.background.declaring import as_duration
from maniflex.background.json_text import is_text
from maniflex.background.runs.handlers import PRIORITIES
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.model.base import Model


class Options(TypedDict, total=False):
    """The options of `submit`."""

    priority: int  # -100 to 100, higher first
    run_at: datetime | None
    delay: timedelta | float | None
    max_attempts: int | None
    group_key: str | None
    timeout: timedelta | float | None
    actor_id: str | None
    tenant_id: str | None
    trace_id: str | None
    parent_id: str | None
    about: Model | str | None  # the record it is about


def check_names(options: Iterable[str]) -> None:
    """Raise `TypeError` for the first name that is no option of a run."""
    for name in options:
        if name not in Options.__annotations__:
            near = did_you_mean(name, Options.__annotations__)
            raise TypeError(f"a run has no option {name!r}{near}")


def when(now: datetime, run_at: Any, delay: timedelta | float | None) -> datetime:
    """When a run is due that is submitted now."""
    if run_at is not None and delay is not None:
        raise DeclarationError("a run has a run_at or a delay, not both")
    if delay is not None:
        try:
            return now + as_duration(delay, "delay")
        except (DeclarationError, OverflowError):
            raise option_error("delay", "must be a timedelta or seconds, and not centuries") from None
    if run_at is not None and not (isinstance(run_at, datetime) and run_at.tzinfo is not None):
        raise option_error("run_at", "must be a datetime with a time zone")
    return now if run_at is None else run_at


def key(value: Any) -> str | None:
    """An idempotency key."""
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= 500):
        raise option_error("idempotency_key", "must be a text of 1 to 500 characters")
    return text("idempotency_key", value)


def signal_name(value: Any) -> str:
    """The name of a signal: any text but those that stand for a run that is waited for."""
    if not is_text(value):
        raise option_error("name", "must be a text without NUL and lone surrogates")
    if not value:
        raise option_error("name", "must not be empty")
    if value.startswith("run:"):
        raise option_error("name", "must not begin with run:")
    return str(value)


def text(name: str, value: Any) -> str | None:
    """A text that both databases take as it is."""
    if value is not None and not is_text(value):
        raise option_error(name, "must be a text without NUL and lone surrogates")
    return None if value is None else str(value)


def seconds(timeout: timedelta | float | None) -> float | None:
    """How long an attempt may take."""
    if timeout is None:
        return None
    try:
        limit = as_duration(timeout, "timeout").total_seconds()
    except DeclarationError:
        limit = 0
    if limit <= 0:
        raise option_error("timeout", "must be a timedelta or seconds, above zero")
    return limit


def check_int(name: str, value: Any, least: int) -> None:
    """A whole number that both databases take."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise option_error(name, f"must be a whole number of at least {least}")


def check_priority(value: Any) -> None:
    """One of the few there are."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > PRIORITIES:
        raise option_error("priority", f"must be a whole number from -{PRIORITIES} to {PRIORITIES}")


def option_error(name: str, message: str) -> ValidationFailed:
    """The error of an option that cannot be used."""
    return ValidationFailed(f"{name} {message}", [{"field": name, "message": message}])
