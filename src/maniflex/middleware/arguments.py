"""Whether arguments of entries are what their types promise; type checkers do not run everywhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from maniflex.pipeline.registration import takes

CENTURY = timedelta(days=36525)
NO_DURATION = timedelta(-1)


def is_text(value: object) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_function(value: object, *counts: int) -> bool:
    """Whether it can be called with one of these numbers of arguments."""
    return callable(value) and any(takes(value, count) for count in counts)


def as_timedelta(duration: Any) -> timedelta:
    """Seconds or a `timedelta` as a `timedelta`.

    What is neither, is no number or lasts longer than a century reads as a negative duration, so that the
    entry refuses it together with all other negative ones.
    """
    if isinstance(duration, timedelta):
        return duration if duration <= CENTURY else NO_DURATION
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        return NO_DURATION
    return timedelta(seconds=duration) if 0 <= duration <= CENTURY.total_seconds() else NO_DURATION
