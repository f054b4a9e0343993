"""Checks that all declarations of durable work share: switches, roles and durations.

A switch that is not True or False is a mistake that opens or closes something: `public="no"` is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from maniflex.errors import DeclarationError

LONGEST = timedelta(days=36525)  # a century; any time of today and this is a time that databases take


def switch_problems(**switches: Any) -> Iterator[str]:
    """Name the switches that are neither on nor off."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            yield f"{name} is True or False, not {value!r}"


def role_problems(role: Any) -> Iterator[str]:
    """Refuse a role that is no name, which every caller or none would have."""
    if not isinstance(role, str) or not role.strip():
        yield f"admin_role is the name of a role such as 'admin', not {role!r}"


def duration_problems(**durations: Any) -> Iterator[str]:
    """Name the durations that nothing can take."""
    for name, value in durations.items():
        if not _lasts(value):
            yield f"{name} must be a timedelta or seconds, above zero and no more than a century"


def _lasts(value: Any) -> bool:
    try:
        return timedelta(0) < as_duration(value, "it") <= LONGEST
    except DeclarationError:
        return False


def as_duration(value: timedelta | float, what: str) -> timedelta:
    """A duration given as such or in seconds."""
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return timedelta(seconds=value)
    except (TypeError, OverflowError, ValueError):
        raise DeclarationError(f"{what} must be a timedelta or seconds") from None
