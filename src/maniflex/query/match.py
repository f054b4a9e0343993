"""Conditions on values in memory: what a row about to be written is held against.

The databases evaluate the same operators in SQL (`sql/operators.py`); both must agree.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from maniflex.query.operators import Op, fold_case

Matcher = Callable[[Any, Any], bool]


def holds(op: Op, value: Any, wanted: Any) -> bool:
    """Whether a value satisfies a condition; what cannot be told here does not."""
    if value is None:
        return op is Op.IS_NULL
    return MATCHERS[op](value, wanted)


def _text(matcher: Callable[[str, str], bool]) -> Matcher:
    """A comparison of texts in which ASCII letters are alike; no other value satisfies it."""
    return lambda value, wanted: isinstance(value, str) and matcher(fold_case(value), fold_case(wanted))


def _matches_pattern(text: str, pattern: str) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    expression = "".join(wild.get(p) or re.escape(p[-1]) for p in parts)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _cannot_be_told(value: Any, wanted: Any) -> bool:
    """Another field is no value; what it holds is known to the database alone."""
    return False


# Of a value that is not null.
MATCHERS: dict[Op, Matcher] = {
    Op.EQ: operator.eq,
    Op.NEQ: operator.ne,
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.LIKE: lambda value, wanted: isinstance(value, str) and _matches_pattern(value, wanted),
    Op.ILIKE: _text(_matches_pattern),
    Op.CONTAINS: _text(operator.contains),
    Op.STARTS_WITH: _text(str.startswith),
    Op.ENDS_WITH: _text(str.endswith),
    Op.IN: lambda value, wanted: value in wanted,
    Op.NOT_IN: lambda value, wanted: value not in wanted,
    Op.BETWEEN: lambda value, wanted: bool(wanted[0] <= value <= wanted[1]),
    Op.IS_NULL: lambda value, wanted: False,
    Op.NOT_NULL: lambda value, wanted: True,
    Op.EQ_FIELD: _cannot_be_told,
    Op.NEQ_FIELD: _cannot_be_told,
    Op.GT_FIELD: _cannot_be_told,
    Op.GTE_FIELD: _cannot_be_told,
    Op.LT_FIELD: _cannot_be_told,
    Op.LTE_FIELD: _cannot_be_told,
}
