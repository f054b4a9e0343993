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
    folded, looked_for = _folded(value), _folded(wanted)
    match op:
        case Op.ILIKE:
            return _pattern(looked_for).fullmatch(folded) is not None
        case Op.CONTAINS:
            return looked_for in folded
        case Op.STARTS_WITH:
            return folded.startswith(looked_for)
        case Op.ENDS_WITH:
            return folded.endswith(looked_for)
        case _:
            return False


def _folded(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def _pattern(like: str) -> re.Pattern[str]:
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(p) or re.escape(p[-1]) for p in parts), re.DOTALL)
