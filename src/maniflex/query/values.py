"""Text of a query string → a value of the field's type, or `InvalidQuery` naming the parameter."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any
from uuid import UUID

from maniflex._json import text_trouble
from maniflex.config import Limits
from maniflex.errors import InvalidQuery
from maniflex.model.meta import NUMBERS, FieldMeta, Kind
from maniflex.model.texts import LOCALE
from maniflex.model.value_rules import MAX_DECIMAL_DIGITS, written_digits
from maniflex.query.operators import USUAL_WORDS, Operator, Takes, operator, works_on

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE)
_ITEM = re.compile(r'(?:("(?:[^"]|"")*")|([^",]*))(?=,|\Z)')
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INT64 = 2**63


def _int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError
    value = int(text)
    if not -_INT64 <= value < _INT64:
        raise ValueError
    return value


def _float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError
    return value


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return Decimal(text)


def _bool(text: str) -> bool:
    return _BOOLEANS[text.lower()]


def _datetime(text: str) -> datetime:
    if len(text) < 10 or text[4] != "-":
        raise ValueError
    # A "+" of an offset that was not percent-encoded arrives as a blank.
    value = datetime.fromisoformat(re.sub(r" ([0-9]{2}:?[0-9]{2})$", r"+\1", text) if "T" in text else text)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _date(text: str) -> date:
    if len(text) != 10:
        raise ValueError
    return date.fromisoformat(text)


def _time(text: str) -> time:
    value = time.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError
    return value


def _uuid(text: str) -> UUID:
    if not (text.isascii() and _UUID.fullmatch(text)):  # Python's own reads signs, blanks and other digits
        raise ValueError
    return UUID(text)


def _text(text: str) -> str:
    return text


# None: no value of the kind can be written in a query string.
_PARSERS: dict[Kind, tuple[Callable[[str], Any], str] | None] = {
    Kind.TEXT: (_text, "text"),
    Kind.INT: (_int, "a whole number"),
    Kind.FLOAT: (_float, "a number"),
    Kind.DECIMAL: (_decimal, "a number"),
    Kind.BOOL: (_bool, "true or false"),
    Kind.DATETIME: (_datetime, "a date and time such as 2026-01-31T12:00:00Z"),
    Kind.DATE: (_date, "a date such as 2026-01-31"),
    Kind.TIME: (_time, "a time such as 12:30:00"),
    Kind.UUID: (_uuid, "a UUID"),
    Kind.BYTES: None,
    Kind.JSON: None,
}


def comparable(field: FieldMeta) -> bool:
    """Whether a value of this field can be written in a query string at all."""
    return _PARSERS[field.kind] is not None or LOCALE in field.extra


def split_list(text: str) -> list[str]:
    """The items of a comma-separated list.

    One in double quotes may hold commas; a quote inside it is written twice.
    """
    if '"' not in text:
        return text.split(",")
    items = []
    rest = text
    while True:
        match = _ITEM.match(rest)
        if match is None:
            raise InvalidQuery("filter: a quote in the list is not closed")
        quoted_item, plain = match[1], match[2]
        items.append(quoted_item[1:-1].replace('""', '"') if quoted_item is not None else plain)
        if match.end() == len(rest):
            return items
        rest = rest[match.end() + 1 :]


def parse_value(text: str, field: FieldMeta, parameter: str, *, member: bool = True) -> Any:
    """The value `text` stands for in a filter on `field`; an enum's must be one of its members."""
    parser = _PARSERS[field.kind]
    assert parser is not None, field  # no operator that takes a value works on such a field
    convert, description = parser
    try:
        value = convert(text)
    except (ValueError, KeyError, OverflowError, InvalidOperation):
        raise InvalidQuery(f"{parameter}: {field.api} takes {description}") from None
    if field.ignore_case:
        value = value.lower()
    if isinstance(value, Decimal) and written_digits(value) > MAX_DECIMAL_DIGITS:
        raise InvalidQuery(f"{parameter}: {field.api} takes at most {MAX_DECIMAL_DIGITS} digits")
    if member and field.enum is not None and value not in field.enum:
        members = ", ".join(map(str, field.enum))
        raise InvalidQuery(f"{parameter}: {field.api} is one of {members}")
    return value


_WILDCARD = re.compile(r"\\.|([%_])", re.DOTALL)
LONGEST_PATTERN = 5000  # of code; SQLite refuses patterns of more than 50,000 bytes


def check_text(value: Any, parameter: str, limits: Limits | None) -> Any:
    """The text that an operator looks for, if it is not too long to look for.

    Matching one text is nothing a time limit can interrupt, so what it may cost is limited here.
    """
    longest = LONGEST_PATTERN if limits is None else limits.pattern_length
    if len(value) > longest:
        raise InvalidQuery(f"{parameter}: at most {longest} characters to look for")
    return value


def check_pattern(value: Any, parameter: str, limits: Limits | None) -> Any:
    """The pattern that an operator looks for, if it is sound and not too much to look for."""
    check_text(value, parameter, limits)
    if (len(value) - len(value.rstrip("\\"))) % 2:  # it would escape nothing
        raise InvalidQuery(f"{parameter}: a pattern cannot end with a backslash")
    if limits is not None and sum(1 for match in _WILDCARD.finditer(value) if match[1]) > limits.wildcards:
        raise InvalidQuery(f"{parameter}: at most {limits.wildcards} wildcards in a pattern")
    return value


# What stands behind an operator, as a value of the field's type.
#
# The one home of that rule: query strings, `where` of aggregates and trees, `add_filter` and `force` all
# type by it.

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
        usual = USUAL_WORDS.get(word.lower()) if isinstance(word, str) else None
        raise InvalidQuery(f"{part}: there is no operator {word!r}" + (f"; write {usual}" if usual else ""))
    if not works_on(rule, field):
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
