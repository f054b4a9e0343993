"""The filter operators as data: what each takes, which kinds of field it is for, what it means.

The parser, OpenAPI and the docs use the data as it is. How an operator is written in SQL is in
`sql/operators.py: WRITERS`, how it is compared in Python in `query/query.py: MATCHERS`; a test holds
all three tables to every `Op`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import LOCALE


class Op(StrEnum):
    """What a filter does with a field and a value."""

    EQ = "eq"
    NEQ = "neq"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    LIKE = "like"
    ILIKE = "ilike"
    CONTAINS = "contains"
    STARTS_WITH = "starts_with"
    ENDS_WITH = "ends_with"
    IN = "in"
    NOT_IN = "not_in"
    BETWEEN = "between"
    IS_NULL = "is_null"
    NOT_NULL = "not_null"
    EQ_FIELD = "eq_field"
    NEQ_FIELD = "neq_field"
    GT_FIELD = "gt_field"
    GTE_FIELD = "gte_field"
    LT_FIELD = "lt_field"
    LTE_FIELD = "lte_field"


class Takes(StrEnum):
    """What stands behind an operator."""

    NOTHING = "nothing"
    EXACT = "a value or `null`"  # of an enum a member
    ONE = "a value"
    TEXT = "a text"  # nothing in it is special
    PATTERN = "a pattern"
    MANY = "a list"
    TWO = "two values"
    FIELD = "a field"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: what it takes, which kinds of field it is for, what it means."""

    op: Op
    takes: Takes
    kinds: frozenset[Kind]
    meaning: str


_ANY = frozenset(Kind) - {Kind.JSON, Kind.BYTES}
_ORDERED = _ANY - {Kind.BOOL}
_TEXT = frozenset({Kind.TEXT})
_NULLABLE = frozenset(Kind)

OPERATORS: dict[Op, Operator] = {
    o.op: o
    for o in (
        Operator(Op.EQ, Takes.EXACT, _ANY, "equals the value; `null` finds the empty ones"),
        Operator(Op.NEQ, Takes.EXACT, _ANY, "differs from the value; `null` finds the filled ones"),
        Operator(Op.GT, Takes.ONE, _ORDERED, "is greater or later"),
        Operator(Op.GTE, Takes.ONE, _ORDERED, "is greater, later or equal"),
        Operator(Op.LT, Takes.ONE, _ORDERED, "is less or earlier"),
        Operator(Op.LTE, Takes.ONE, _ORDERED, "is less, earlier or equal"),
        Operator(Op.LIKE, Takes.PATTERN, _TEXT, "matches a pattern with `%` and `_`, by case"),
        Operator(Op.ILIKE, Takes.PATTERN, _TEXT, "matches a pattern with `%` and `_`, whatever the case"),
        Operator(
            Op.CONTAINS, Takes.TEXT, _TEXT, "contains the text, whatever the case; nothing in it is special"
        ),
        Operator(Op.STARTS_WITH, Takes.TEXT, _TEXT, "starts with the text, whatever the case"),
        Operator(Op.ENDS_WITH, Takes.TEXT, _TEXT, "ends with the text, whatever the case"),
        Operator(Op.IN, Takes.MANY, _ANY, "is one of the values"),
        Operator(Op.NOT_IN, Takes.MANY, _ANY, "is none of the values"),
        Operator(Op.BETWEEN, Takes.TWO, _ORDERED, "lies between the two values, both included"),
        Operator(Op.IS_NULL, Takes.NOTHING, _NULLABLE, "is empty"),
        Operator(Op.NOT_NULL, Takes.NOTHING, _NULLABLE, "is filled"),
        Operator(Op.EQ_FIELD, Takes.FIELD, _ANY, "equals another field of the record"),
        Operator(Op.NEQ_FIELD, Takes.FIELD, _ANY, "differs from another field of the record"),
        Operator(Op.GT_FIELD, Takes.FIELD, _ORDERED, "is greater than another field of the record"),
        Operator(Op.GTE_FIELD, Takes.FIELD, _ORDERED, "is greater than another field or equal to it"),
        Operator(Op.LT_FIELD, Takes.FIELD, _ORDERED, "is less than another field of the record"),
        Operator(Op.LTE_FIELD, Takes.FIELD, _ORDERED, "is less than another field or equal to it"),
    )
}
ALIASES = {"ne": Op.NEQ.value}
_BY_NAME: dict[str, Operator] = {
    **{op.value: operator for op, operator in OPERATORS.items()},
    **{alias: OPERATORS[Op(name)] for alias, name in ALIASES.items()},
}


# What other frameworks call them, for whoever writes one of those.
USUAL_WORDS: Mapping[str, Op] = {
    **dict.fromkeys(("equals", "equal", "is", "exact", "=", "=="), Op.EQ),
    **dict.fromkeys(("not", "not_equals", "not_equal", "!=", "<>"), Op.NEQ),
    **dict.fromkeys(("greater_than", "after", ">"), Op.GT),
    **dict.fromkeys(("ge", "min", ">="), Op.GTE),
    **dict.fromkeys(("less_than", "before", "<"), Op.LT),
    **dict.fromkeys(("le", "max", "<="), Op.LTE),
    **dict.fromkeys(("includes", "icontains", "match", "search", "~"), Op.CONTAINS),
    **dict.fromkeys(("startswith", "prefix"), Op.STARTS_WITH),
    **dict.fromkeys(("endswith", "suffix"), Op.ENDS_WITH),
    **dict.fromkeys(("any", "any_of", "one_of"), Op.IN),
    **dict.fromkeys(("nin", "notin", "none_of"), Op.NOT_IN),
    **dict.fromkeys(("range",), Op.BETWEEN),
    **dict.fromkeys(("null", "isnull", "is_empty"), Op.IS_NULL),
    **dict.fromkeys(("notnull", "isnotnull", "is_not_null", "exists"), Op.NOT_NULL),
}


def operator(name: str) -> Operator | None:
    """The operator of that name, also by its other spelling."""
    return _BY_NAME.get(name)


# What a digest decides, and what needs no value at all.
BY_DIGEST = frozenset({Op.EQ, Op.NEQ, Op.IN, Op.NOT_IN, Op.IS_NULL, Op.NOT_NULL})
_WITHOUT_VALUE = frozenset({Op.IS_NULL, Op.NOT_NULL})


def works_on(operator: Operator, field: FieldMeta) -> bool:
    """Whether a field can be filtered with the operator; of an encrypted one by its digest alone."""
    if field.encrypted is not None:
        return operator.op in (BY_DIGEST if field.has_digest else _WITHOUT_VALUE)
    if LOCALE in field.extra:  # a text with translations is compared as one text
        return Kind.TEXT in operator.kinds and operator.takes is not Takes.FIELD
    return field.kind in operator.kinds


def fitting(kind: Kind) -> tuple[Operator, ...]:
    """The operators a field of that kind can be filtered with."""
    return tuple(o for o in OPERATORS.values() if kind in o.kinds)


def fold_case(text: str) -> str:
    """The text as operators compare it that do not tell case apart: that of ASCII letters, everywhere."""
    return "".join(c.lower() if c.isascii() else c for c in text)
