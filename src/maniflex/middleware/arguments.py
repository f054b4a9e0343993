"""Whether arguments of entries are what their types promise; type checkers do not run everywhere."""

from __future__ import annotations

from maniflex.pipeline.registration import takes


def is_text(value: object) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_function(value: object, *counts: int) -> bool:
    """Whether it can be called with one of these numbers of arguments."""
    return callable(value) and any(takes(value, count) for count in counts)
