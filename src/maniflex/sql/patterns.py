"""The text operators: `like` and `ilike` by the database's patterns, the others by comparing text.

Case is that of ASCII letters on both databases. The operators that take text literally use no pattern:
matching one is a single call that no time limit can interrupt, and long texts of few letters make it slow.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from maniflex.query.operators import Op
from maniflex.sql.statement import Dialect

Condition = sa.ColumnElement[bool]

LENGTH = "$n"  # ends the name of the parameter that says how long a start or an end is
ENDS = frozenset({Op.STARTS_WITH, Op.ENDS_WITH})
TEXT_OPERATORS = frozenset({Op.LIKE, Op.ILIKE, Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH})


def matches(dialect: Dialect, column: Any, op: Op, name: str) -> Condition:
    """The condition that a text matches the parameter `name`."""
    if op in (Op.LIKE, Op.ILIKE):
        return _matches_pattern(dialect, column, op, name)
    text, length = _text(name), sa.bindparam(name + LENGTH, type_=sa.Integer())
    condition: Condition
    if dialect is Dialect.POSTGRES:
        column = sa.collate(column, "C")
        if op is Op.CONTAINS:
            condition = sa.func.strpos(sa.func.lower(column), text) > _number(0)
        else:
            end = sa.func.left if op is Op.STARTS_WITH else sa.func.right
            condition = sa.func.lower(end(column, length)) == text
    elif op is Op.CONTAINS:
        condition = sa.func.instr(sa.func.lower(column), text) > _number(0)
    else:
        start = _number(1) if op is Op.STARTS_WITH else -length
        condition = sa.func.substr(column, start, length) == sa.collate(text, "NOCASE")
    return condition


def _matches_pattern(dialect: Dialect, column: Any, op: Op, name: str) -> Condition:
    if dialect is Dialect.POSTGRES:
        return column.op("LIKE" if op is Op.LIKE else "ILIKE", is_comparison=True)(_text(name))  # type: ignore[no-any-return]
    # SQLite's LIKE ignores case, so patterns go to GLOB, which does not.
    subject: Any = column if op is Op.LIKE else sa.func.lower(column)
    return subject.op("GLOB", is_comparison=True)(_text(name))  # type: ignore[no-any-return]


def _text(name: str) -> Any:
    return sa.bindparam(name, type_=sa.Text())


def _number(value: int) -> Any:
    return sa.literal_column(str(value))


def pattern_value(dialect: Dialect, op: Op, text: str) -> str:
    """The text of a text operator as the parameter of `matches`."""
    if op not in (Op.LIKE, Op.ILIKE):
        return _lower_ascii(text)
    if dialect is Dialect.POSTGRES:
        return text
    return _as_glob(text if op is Op.LIKE else _lower_ascii(text))


def _lower_ascii(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def _as_glob(pattern: str) -> str:
    parts = []
    after_backslash = False
    for char in pattern:
        if after_backslash:
            parts.append(f"[{char}]" if char in "*?[" else char)
            after_backslash = False
        elif char == "\\":
            after_backslash = True
        else:
            parts.append({"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}.get(char, char))
    return "".join(parts)
