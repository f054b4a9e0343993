"""Values that entries are given, as the fields they are compared with hold them."""

from __future__ import annotations

from typing import Any

from maniflex._names import did_you_mean
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind
from maniflex.query.values import convert_value


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
