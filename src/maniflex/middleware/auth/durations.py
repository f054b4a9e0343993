"""Durations as users write them: a `timedelta` or seconds."""

from __future__ import annotations

from datetime import timedelta

Duration = timedelta | float


def as_timedelta(duration: Duration) -> timedelta:
    return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
