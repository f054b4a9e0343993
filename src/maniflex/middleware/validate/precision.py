"""`validate.numeric_precision`: how many digits a number may have, as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.model.messages import detail
from maniflex.model.meta import NUMBERS, FieldMeta, Kind, ModelMeta
from maniflex.pipeline.checks import Check, Draft, Problems, ValueRule
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Seat, require_field
from maniflex.pipeline.operation import Operation

_PLAIN = re.compile(r"[+-]?(?=\.?[0-9])(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?\Z")


def numeric_precision(field: str, precision: int, scale: int) -> Entry:
    """Refuse numbers with more digits than `precision`, or more of them behind the point than `scale`.

    Whole digits are at most `precision - scale`, as in SQL; 0 switches one of the limits off.
    """
    return PrecisionEntry(field, precision, scale)


class PrecisionEntry(RuleEntry):
    """Limits of the digits of a number."""

    name = "validate.numeric_precision"

    def __init__(self, field: str, precision: int, scale: int) -> None:
        super().__init__()
        self.fields = (field,)
        self._precision, self._scale = precision, scale
        if not all(type(limit) is int and limit >= 0 for limit in (precision, scale)):
            self.mistakes.append("precision and scale are whole numbers of at least 0")
        elif 0 < precision < scale:
            self.mistakes.append(f"the scale {scale} is larger than the precision {precision}")
        elif not precision and not scale:
            self.mistakes.append("precision and scale are both 0, so every number would pass")

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field = require_field(model, self.fields[0])
        if field.kind not in NUMBERS and (field.kind is not Kind.TEXT or field.enum is not None):
            yield f"{field.name} is neither a number nor a text that may hold one"

    def rules(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        yield PrecisionRule(require_field(model, self.fields[0]), self._precision, self._scale)


class PrecisionRule(ValueRule):
    """Counts the digits of one field."""

    def __init__(self, field: FieldMeta, precision: int, scale: int) -> None:
        self.names = frozenset({field.name})
        self._field = field
        self._is_number = field.kind in NUMBERS
        self._precision, self._scale = precision, scale

    def judge(self, ctx: Context, draft: Draft) -> Problems:
        field = self._field
        value = draft.body.get(field.api)
        if value is None or field.name in draft.refused:
            return ()
        problem = self._problem(ctx.sent_digits(field.api) or _digits(value))
        return [detail(field.api, "digits", problem)] if problem else ()

    def _problem(self, text: str) -> str | None:
        match = _PLAIN.match(text)
        if match is None:
            return "must be written without an exponent" if self._is_number else "must be a number"
        whole = len(match["whole"].lstrip("0"))
        fraction = len((match["fraction"] or "").rstrip("0"))
        if self._scale and fraction > self._scale:
            return f"must have at most {self._scale} digits behind the point"
        most_whole = self._precision - self._scale
        if self._precision and self._scale and whole > most_whole:
            return f"must have at most {most_whole} digits before the point"
        if self._precision and whole + fraction > self._precision:
            return f"must have at most {self._precision} digits"
        return None


def _digits(value: Any) -> str:
    """The digits of a value that came as text, or that code has set."""
    if isinstance(value, str):
        return value
    number = value if isinstance(value, int | Decimal) else Decimal(repr(value))
    return format(Decimal(number), "f")
