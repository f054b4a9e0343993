"""Conditions on values in memory: what a row about to be written is held against.

The databases evaluate the same operators in SQL (`sql/where.py`); both must agree.
"""

from __future__ import annotations

import re
from typing import Any

from maniflex.query.operators import Op


def holds(op: Op, value: Any, wanted: Any) -> bool:
    """Whether a value satisfies a condition; what cannot be told here does not."""
    if op is Op.IS_NULL:
        return value is None
    if op is Op.NOT_NULL:
        return value is not None
    if value is None:
        return False
    match op:
        case Op.EQ:
            return bool(value == wanted)
        case Op.NEQ:
            return bool(value != wanted)
        case Op.GT:
            return bool(value > wanted)
        case Op.GTE:
            return bool(value >= wanted)
        case Op.LT:
            return bool(value < wanted)
        case Op.LTE:
            return bool(value <= wanted)
        case Op.IN:
            return value in wanted
        case Op.NOT_IN:
            return value not in wanted
        case Op.BETWEEN:
            return bool(wanted[0] <= value <= wanted[1])
        case _:
            return _matches(op, value, wanted)


def _matches(op: Op, value: Any, wanted: Any) -> bool:
    """The text operators, as the databases read them: ASCII letters are alike, except to `like`."""
    if not isinstance(value, str):
        return False
    if op is Op.LIKE:
        return _pattern(wanted).fullmatch(value) is not None
    text, wanted_text = _fold_case(value), _fold_case(wanted)
    match op:
        case Op.ILIKE:
            return _pattern(wanted_text).fullmatch(text) is not None
        case Op.CONTAINS:
            return wanted_text in text
        case Op.STARTS_WITH:
            return text.startswith(wanted_text)
        case Op.ENDS_WITH:
            return text.endswith(wanted_text)
        case _:
            return False


def _fold_case(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def _pattern(like: str) -> re.Pattern[str]:
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(p) or re.escape(p[-1]) for p in parts), re.DOTALL)
