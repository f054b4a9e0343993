"""Conditions of entries on the values of a record: `"status:eq:paid"`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from maniflex._names import did_you_mean
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.entry import require_field
from maniflex.query.operators import OPERATORS, Op
from maniflex.query.values import operand, split_operand

_OPERATORS: dict[str, tuple[Op, Callable[[Any, Any], bool]]] = {
    "eq": (Op.EQ, operator.eq),
    "ne": (Op.NEQ, operator.ne),
    "neq": (Op.NEQ, operator.ne),
    "gt": (Op.GT, operator.gt),
    "gte": (Op.GTE, operator.ge),
    "lt": (Op.LT, operator.lt),
    "lte": (Op.LTE, operator.le),
}
_EQUALITY = (Op.EQ, Op.NEQ)
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?\Z")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a field with a value."""

    field: FieldMeta
    op: Op
    compare: Callable[[Any, Any], bool]
    value: Any

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the record with these values meets it; an order with null does not."""
        if self.field.name not in values:
            return False
        value = values[self.field.name]
        if self.op not in _EQUALITY and (value is None or self.value is None):
            return False
        if self.op not in _EQUALITY and _is_number(value) and _is_number(self.value):
            return self.compare(Decimal(value), Decimal(self.value))
        return self.compare(value, self.value)


def _is_number(value: Any) -> bool:
    """Whether a text holds a number: "10" comes after "9"."""
    return isinstance(value, str) and _NUMBER.match(value) is not None


def condition_problem(text: str) -> str | None:
    """The mistake in how a condition is written."""
    parts = text.split(":", 2)
    if len(parts) != 3:
        return f'the condition {text!r} is not written "field:op:value"'
    if parts[1] not in _OPERATORS:
        hint = did_you_mean(parts[1], _OPERATORS) or f"; there are: {', '.join(_OPERATORS)}"
        return f"the condition {text!r}: there is no operator {parts[1]!r}{hint}"
    return None


def read_condition(model: ModelMeta, text: str) -> Condition:
    """The condition on fields of a model; `ValueError` for a value that the field cannot have."""
    name, word, value = text.split(":", 2)
    field = require_field(model, name)
    op, compare = _OPERATORS[word]
    rule = OPERATORS[op]
    if field.kind in (Kind.JSON, Kind.BYTES) or field.kind not in rule.kinds:
        raise ValueError(f"the condition {text!r}: {word} does not work on {field.name}")
    try:
        target = operand(rule, field, split_operand(rule, field, value), f"the condition {text!r}", None)
    except InvalidQuery as error:
        raise ValueError(error.message) from None
    return Condition(field, op, compare, target)
