"""Spans of time as people say them.

>>> span(timedelta(seconds=7_260))
'2 h 1 min'
"""

from __future__ import annotations

from datetime import timedelta

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(duration: timedelta) -> str:
    """The two largest units of a span, without the second where it is nothing."""
    seconds = max(round(duration.total_seconds()), 0)
    for place, (unit, size) in enumerate(_UNITS):
        if seconds < size and size > 1:
            continue
        whole, rest = divmod(seconds, size)
        below = _UNITS[place + 1] if place + 1 < len(_UNITS) else None
        part = rest // below[1] if below is not None else 0
        return f"{whole} {unit}" + (f" {part} {below[0]}" if below is not None and part else "")
    raise AssertionError("a second is the smallest unit")
