"""What stands behind an operator, as a value of the field's type.

The one home of that rule: query strings, `where` of aggregates and trees, `add_filter` and `force` all
type by it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from maniflex._limits import Limits
from maniflex.errors import InvalidQuery
from maniflex.model.meta import NUMBERS, FieldMeta, Kind
from maniflex.model.value_rules import text_trouble
from maniflex.query.operators import Operator, Takes, operator
from maniflex.query.values import check_pattern, check_text, parse_value, split_list

# What code gives as it is. None: text and numbers are read as in a query string, the rest is refused.
_OWN_TYPES: dict[Kind, type | None] = {
    Kind.TEXT: None,
    Kind.INT: None,
    Kind.FLOAT: None,
    Kind.BOOL: bool,
    Kind.DECIMAL: None,
    Kind.DATETIME: datetime,
    Kind.DATE: date,
    Kind.TIME: time,
    Kind.UUID: UUID,
    Kind.BYTES: None,
    Kind.JSON: None,
}


def require_operator(word: Any, field: FieldMeta, part: str) -> Operator:
    """The operator of that name, if it works on the field."""
    rule = operator(word) if isinstance(word, str) else None
    if rule is None:
        raise InvalidQuery(f"{part}: there is no operator {word!r}")
    if field.kind not in rule.kinds:
        raise InvalidQuery(f"{part}: {rule.op} does not work on {field.api!r}")
    return rule


def split_operand(operator: Operator, field: FieldMeta, text: str) -> Any:
    """The text behind an operator of a query string as `operand` takes it: nothing, one text or a list."""
    match operator.takes:
        case Takes.NOTHING:
            return text or None
        case Takes.MANY | Takes.TWO:
            return split_list(text) if text else []
        case Takes.EXACT:
            return None if text == "null" and field.nullable else text
        case _:
            return text


def operand(operator: Operator, field: FieldMeta, value: Any, part: str, limits: Limits | None) -> Any:
    """What stands behind the operator, of the field's type."""
    match operator.takes:
        case Takes.NOTHING:
            if value is not None:
                raise InvalidQuery(f"{part}: {operator.op} takes no value")
            return None
        case Takes.MANY | Takes.TWO:
            many = value if isinstance(value, list | tuple | set | frozenset) else None
            if operator.takes is Takes.TWO and (many is None or len(many) != 2):
                raise InvalidQuery(f"{part}: {operator.op} takes exactly two values")
            if many is None:
                raise InvalidQuery(f"{part}: {operator.op} takes a list")
            if limits is not None and not 1 <= len(many) <= limits.values:
                # An empty list comes of a choice nobody made, and `not_in` would then give everything.
                wrong = (
                    f"at most {limits.values} values" if many else f"{operator.op} takes at least one value"
                )
                raise InvalidQuery(f"{part}: {wrong}")
            return tuple(convert_value(item, field, part) for item in many)
        case Takes.EXACT:
            return None if value is None and field.nullable else convert_value(value, field, part)
        case Takes.ONE:
            return convert_value(value, field, part, member=False)
        case Takes.TEXT:
            return check_text(convert_value(value, field, part, member=False), part, limits)
        case Takes.PATTERN:
            return check_pattern(convert_value(value, field, part, member=False), part, limits)
        case Takes.FIELD:
            raise InvalidQuery(f"{part}: {operator.op} compares stored fields only")


def convert_value(value: Any, field: FieldMeta, part: str, *, member: bool = True) -> Any:
    """A value of JSON or Python as the field's type; text is read as in a query string."""
    if isinstance(value, Enum):
        value = value.value
    if field.kind is Kind.TEXT and (isinstance(value, UUID) or _is_own_object(value, field.type)):
        value = str(value)
    own = _OWN_TYPES[field.kind]
    if isinstance(value, str):
        if trouble := text_trouble(value):
            raise InvalidQuery(f"{part}: a text {trouble}")
        return parse_value(value, field, part, member=member)
    if own is not None and isinstance(value, own) and (own is not date or not isinstance(value, datetime)):
        if isinstance(value, datetime) and value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and field.kind in NUMBERS:
        return parse_value(_digits(value), field, part, member=member)
    raise InvalidQuery(f"{part}: the value does not fit {field.api!r}")


def _is_own_object(value: Any, declared: Any) -> bool:
    """Whether code gave an object of the field's own type, such as an `HttpUrl`."""
    return isinstance(declared, type) and not isinstance(value, str) and isinstance(value, declared)


def _digits(value: float | Decimal) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python writes out
        return ""
