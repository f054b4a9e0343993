"""The text operators: `like` and `ilike` by the database's patterns, the others by comparing text.

Case is that of ASCII letters on both databases. The operators that take text literally use no pattern:
matching one is a single call that no time limit can interrupt, and long texts of few letters make it slow.
"""

from __future__ import annotations

from typing import Any, assert_never

import sqlalchemy as sa

from maniflex.query.operators import Op
from maniflex.sql.statement import Dialect, by_dialect

Condition = sa.ColumnElement[bool]

LENGTH = "$n"  # ends the name of the parameter that says how long a start or an end is
ENDS = frozenset({Op.STARTS_WITH, Op.ENDS_WITH})
TEXT_OPERATORS = frozenset({Op.LIKE, Op.ILIKE, Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH})


def matches(dialect: Dialect, column: Any, op: Op, name: str) -> Condition:
    """The condition that a text matches the parameter `name`."""
    if op in (Op.LIKE, Op.ILIKE):
        return _matches_pattern(dialect, column, op, name)
    text, length = _text(name), sa.bindparam(name + LENGTH, type_=sa.Integer())
    if op is Op.CONTAINS:
        place = by_dialect(dialect, sqlite=sa.func.instr, postgres=sa.func.strpos)
        subject = by_dialect(dialect, sqlite=column, postgres=sa.collate(column, "C"))
        contains: Condition = place(sa.func.lower(subject), text) > _number(0)
        return contains
    start = _number(1) if op is Op.STARTS_WITH else -length
    end = sa.func.left if op is Op.STARTS_WITH else sa.func.right
    return by_dialect(
        dialect,
        sqlite=sa.func.substr(column, start, length) == sa.collate(text, "NOCASE"),
        postgres=sa.func.lower(end(sa.collate(column, "C"), length)) == text,
    )


def _matches_pattern(dialect: Dialect, column: Any, op: Op, name: str) -> Condition:
    # SQLite's LIKE ignores case, so patterns go to GLOB, which does not.
    glob_subject: Any = column if op is Op.LIKE else sa.func.lower(column)
    operator = by_dialect(dialect, sqlite="GLOB", postgres="LIKE" if op is Op.LIKE else "ILIKE")
    subject = by_dialect(dialect, sqlite=glob_subject, postgres=column)
    return subject.op(operator, is_comparison=True)(_text(name))  # type: ignore[no-any-return]


def _text(name: str) -> Any:
    return sa.bindparam(name, type_=sa.Text())


def _number(value: int) -> Any:
    return sa.literal_column(str(value))


def pattern_value(dialect: Dialect, op: Op, text: str) -> str:
    """The text of a text operator as the parameter of `matches`."""
    if op not in (Op.LIKE, Op.ILIKE):
        return _lower_ascii(text)
    if dialect is Dialect.SQLITE:
        return _as_glob(text if op is Op.LIKE else _lower_ascii(text))
    if dialect is Dialect.POSTGRES:
        return text
    assert_never(dialect)


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
