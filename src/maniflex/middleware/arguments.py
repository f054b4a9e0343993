"""Whether arguments of entries are what their types promise; type checkers do not run everywhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from maniflex._names import did_you_mean
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.registration import takes
from maniflex.query.values import convert_value

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

    Any other value, and a duration of more than a century, reads as a negative one: the entry refuses all
    negative durations in one place.
    """
    if isinstance(duration, timedelta):
        return duration if duration <= CENTURY else NO_DURATION
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        return NO_DURATION
    return timedelta(seconds=duration) if 0 <= duration <= CENTURY.total_seconds() else NO_DURATION


# Values that entries are given, as the fields they are compared with hold them.


def typed_value(field: FieldMeta, value: Any) -> Any:
    """The value as the field holds it; `ValueError` says why it cannot."""
    if field.kind in (Kind.JSON, Kind.BYTES):
        raise ValueError(f"{field.name} holds {field.kind}, which cannot be compared")
    if value is None:
        if not field.nullable:
            raise ValueError(f"{field.name} is never null")
        return None
    try:
        return convert_value(value, field, field.name)
    except InvalidQuery as error:
        names = [item for item in field.enum or () if isinstance(item, str)]
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        reason = error.message.removeprefix(f"{field.name}: ")
        raise ValueError(f"{field.name} cannot be {plain_value(value)!r}: {reason}{hint}") from None


def plain_value(value: Any) -> Any:
    """A member of an enum as its value, which stored rows hold."""
    return getattr(value, "value", value)
