"""Checks that all declarations of durable work share: switches, roles and durations.

A switch that is not True or False is a mistake that opens or closes something: `public="no"` is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from maniflex.errors import DeclarationError, ValidationFailed

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


def key_option_problems(encrypted: Any) -> Iterator[str]:
    """What is wrong with `encrypted=` of a handler, a run or a message."""
    if encrypted is None or isinstance(encrypted, bool):
        return
    if not isinstance(encrypted, str) or not encrypted:
        yield f"encrypted is True or the id of a key, not {encrypted!r}"


def key_id_of_option(encrypted: bool | str | None) -> str | None:
    """The key id that `encrypted=` names."""
    return "default" if encrypted is True else encrypted or None


def chosen_key_id(encrypted: bool | str | None, declared: str | None) -> str | None:
    """The key id of what is submitted with `encrypted=`; what its handler declares counts in any case."""
    for problem in key_option_problems(encrypted):
        raise ValidationFailed(problem, [{"field": "encrypted", "message": problem}])
    if encrypted is True and declared is not None:
        return declared
    return key_id_of_option(encrypted) or declared
