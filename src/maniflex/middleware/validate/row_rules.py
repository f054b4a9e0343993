"""Rules over several fields and over other rows; an update is judged by the row as it will be."""

from __future__ import annotations

import operator
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from maniflex._names import did_you_mean
from maniflex.db.backed_store import operator_problems
from maniflex.errors import CallbackFailed, ConstraintViolation, Detail, InvalidQuery
from maniflex.middleware.arguments import is_function, is_text
from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.registry import unknown_model
from maniflex.model.value_rules import detail
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Seat, ask, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import takes
from maniflex.pipeline.rules.checks import (
    Check,
    Problems,
    RecordDraft,
    RowChange,
    RowCheck,
    Sentence,
    ValueRule,
)
from maniflex.query.operators import OPERATORS, Op
from maniflex.query.query import find_field
from maniflex.query.values import operand, split_operand


def cross_field(fn: Callable[..., Any], *, fields: Sequence[str] | str = (), merged: bool = True) -> Entry:
    """Judge a record by a function of its values, or of the context and its values.

    It returns None, a message, or messages by field; `ValueError` is a message too.
    """
    return CrossFieldEntry(fn, [fields] if isinstance(fields, str) else fields, merged)


def date_range(start: str, end: str, *, merged: bool = True) -> Entry:
    """Refuse an end before its start."""
    return DateRangeEntry(start, end, merged)


def require_when(field: str, *conditions: str, merged: bool = True) -> Entry:
    """Ask for a field while all conditions hold, each written `"field:op:value"`."""
    return RequireWhenEntry(field, conditions, merged)


def require_at_least_one(*fields: str, merged: bool = True) -> Entry:
    """Ask for a value in at least one of the fields."""
    return AtLeastOneEntry(fields, merged)


class RowRule(ValueRule):
    """A rule over several fields."""

    def __init__(self, fields: Iterable[FieldMeta], *, merged: bool = True) -> None:
        self.names = frozenset(f.name for f in fields)
        self.reads_row = merged


# -- cross_field


class CrossFieldEntry(RuleEntry):
    """A function of the application."""

    name = "validate.cross_field"

    def __init__(self, fn: Callable[..., Any], fields: Sequence[str], merged: bool) -> None:
        super().__init__()
        self.fields = tuple(fields)
        self._fn, self._merged = fn, merged
        if not is_function(fn, 1, 2):
            self.mistakes.append("it calls (values) or (ctx, values), which the function does not take")

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        fields = [require_field(model, name) for name in self.fields]
        yield CrossFieldRule(model, fields, self._fn, merged=self._merged)


class CrossFieldRule(RowRule):
    """Asks the function of one entry."""

    def __init__(
        self, model: ModelMeta, fields: Sequence[FieldMeta], fn: Callable[..., Any], *, merged: bool
    ) -> None:
        super().__init__(fields, merged=merged)
        self._shown_fields = [f for f in model.fields if not f.hidden]
        self._at = fields[0].api if fields else ""
        self._fn = fn
        self._takes_context = takes(fn, 2)

    def judge(self, ctx: Context, draft: RecordDraft) -> Awaitable[Problems]:
        return self._judge(ctx, draft)

    async def _judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        values = {f.api: draft.values[f.name] for f in self._shown_fields if f.name in draft.values}
        values |= {name: draft.body[name] for name in ctx.extra_names if name in draft.body}
        arguments = (ctx, values) if self._takes_context else (values,)
        try:
            return self._problems(await ask(ctx, self._fn, *arguments))
        except CallbackFailed as error:
            if isinstance(error.__cause__, ValueError):
                return self._problems(str(error.__cause__))
            if draft.refused:  # the record is refused in any case, and lacks the values it needs here
                return ()
            raise

    def _problems(self, outcome: Any) -> list[Detail]:
        if outcome is None or outcome is True:
            return []
        messages = outcome if isinstance(outcome, Mapping) else {self._at: outcome or "is not allowed"}
        return [
            Sentence(field=str(name), message=str(message), code="invalid")
            for name, message in messages.items()
        ]


# -- date_range


class DateRangeEntry(RuleEntry):
    """Two moments in order."""

    name = "validate.date_range"

    def __init__(self, start: str, end: str, merged: bool) -> None:
        super().__init__()
        self.fields = (start, end)
        self._merged = merged
        if start == end:
            self.mistakes.append("start and end are one field")

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        for name in self.fields:
            field = require_field(model, name)
            if field.kind not in (Kind.DATE, Kind.DATETIME):
                yield f"{field.name} is neither a date nor a date and time"

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        start, end = (require_field(model, name) for name in self.fields)
        yield DateRangeRule(start, end, merged=self._merged)


class DateRangeRule(RowRule):
    """Compares two moments."""

    def __init__(self, start: FieldMeta, end: FieldMeta, *, merged: bool) -> None:
        super().__init__((start, end), merged=merged)
        self._start, self._end = start, end

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        start, end = draft.values.get(self._start.name), draft.values.get(self._end.name)
        if start is None or end is None or _moment(end) >= _moment(start):
            return ()
        return [detail(self._end.api, "range", f'must not be before "{self._start.api}"')]


def _moment(value: date) -> datetime:
    """A date means its first moment in UTC."""
    return value if isinstance(value, datetime) else datetime.combine(value, time.min, UTC)


# -- require_when, require_at_least_one


class RequireWhenEntry(RuleEntry):
    """A field that some records need."""

    name = "validate.require_when"

    def __init__(self, field: str, conditions: Sequence[str], merged: bool) -> None:
        super().__init__()
        self._conditions = [text for text in conditions if is_text(text)]
        self._merged = merged
        self.fields = (field, *(text.partition(":")[0] for text in self._conditions))
        if not conditions or len(self._conditions) != len(conditions):
            self.mistakes.append('name at least one condition, each written "field:op:value"')
        self.mistakes += [text for text in map(condition_problem, self._conditions) if text]

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        for text in self._conditions:
            try:
                read_condition(model, text)
            except ValueError as error:
                yield str(error)

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        conditions = [read_condition(model, text) for text in self._conditions]
        yield RequireWhenRule(require_field(model, self.fields[0]), conditions, merged=self._merged)


class RequireWhenRule(RowRule):
    """Asks for a field while conditions hold."""

    def __init__(self, field: FieldMeta, conditions: Sequence[Condition], *, merged: bool) -> None:
        super().__init__((field, *(condition.field for condition in conditions)), merged=merged)
        self._field = field
        self._conditions = conditions
        self._problems = [detail(field.api, "required", "is required here")]

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        values = draft.values
        if self._field.name in draft.refused or not all(c.holds(values) for c in self._conditions):
            return ()
        return self._problems if values.get(self._field.name) in (None, "", [], {}) else ()


class AtLeastOneEntry(RuleEntry):
    """Fields of which one must have a value."""

    name = "validate.require_at_least_one"

    def __init__(self, fields: Sequence[str], merged: bool) -> None:
        super().__init__()
        self.fields = tuple(fields)
        self._merged = merged
        if len(set(fields)) < 2:
            self.mistakes.append("name two fields or more")

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        yield AtLeastOneRule([require_field(model, name) for name in self.fields], merged=self._merged)


class AtLeastOneRule(RowRule):
    """Asks for one of several fields."""

    def __init__(self, fields: Sequence[FieldMeta], *, merged: bool) -> None:
        super().__init__(fields, merged=merged)
        names = ", ".join(f'"{f.api}"' for f in fields)
        message = f"at least one of {names} is required"
        self._problems = [{"field": f.api, "message": message, "code": "required"} for f in fields]

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        if any(draft.values.get(name) is not None or name in draft.refused for name in self.names):
            return ()
        return self._problems


# Conditions of entries on the values of a record: `"status:eq:paid"`.


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


# Rules that look at other rows: values that must be unique, ids that must name a record.


def unique_field(
    field: str, *, within: str | Sequence[str] | None = None, ignore_case: bool = False
) -> Entry:
    """Refuse a value that another live record of the caller's scope has: 409, as the constraint does."""
    names = [within] if isinstance(within, str) else [*(within or ())]
    return UniqueEntry(field, names, ignore_case)


def exists(field: str, model: type[Model] | str, filters: Mapping[str, Any] | None = None) -> Entry:
    """Refuse an id of no live record of `model` in the caller's scope that matches the filters."""
    return ExistsEntry(field, model, filters)


# -- unique_field


class UniqueEntry(RuleEntry):
    """A value that no other record may have."""

    name = "validate.unique_field"

    def __init__(self, field: str, within: Sequence[str], ignore_case: bool) -> None:
        super().__init__()
        self.fields = (field, *within)
        self._ignore_case = ignore_case

    def codes(self, operation: Operation) -> dict[int, tuple[str, ...]]:
        return {409: ("CONFLICT",)}

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field, *within = (require_field(model, name) for name in self.fields)
        if field.kind in (Kind.JSON, Kind.BYTES):
            yield f"{field.name} cannot be looked up"
        for one in (field, *within):
            if one.encrypted is not None and not one.has_digest:
                yield f"{one.name} cannot be looked up; unique=True or blind_index=True gives it a digest"
        if self._ignore_case and field.encrypted is not None and field.blind_index != "casefold":
            yield f"{field.name} is encrypted: blind_index='casefold' ignores its case"
        if self._ignore_case and field.kind is not Kind.TEXT:
            yield f"{field.name} is no text, so it has no case to ignore"
        if field in within:
            yield f"{field.name} cannot be unique within itself"
        yield from operator_problems(model, "ilike" if self._ignore_case else "eq", *["eq"] * len(within))

    def warnings(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            field, *within = (require_field(model, name) for name in self.fields)
            if not _has_unique_index(model, field, within):
                yield f"{model.name}.{field.name} has no unique index, so two requests at once can both pass"

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        field, *within = (require_field(model, name) for name in self.fields)
        lookup = Lookup(model, field, within, self._ignore_case)
        yield UniqueOnCreate(lookup) if operation is Operation.CREATE else UniqueOnUpdate(lookup)


def _has_unique_index(model: ModelMeta, field: FieldMeta, within: Sequence[FieldMeta]) -> bool:
    names = {field.name, *(f.name for f in within)}
    if field.unique and {field.name, *field.unique_within} <= names:
        return True
    return any(index.unique and set(index.columns) <= names for index in model.indices)


class Lookup:
    """Looks for another record with the value of one."""

    def __init__(
        self, model: ModelMeta, field: FieldMeta, within: Sequence[FieldMeta], ignore_case: bool
    ) -> None:
        self._model = model
        self._field = field
        self._within = tuple(within)
        # The digest of an encrypted field ignores case by itself.
        self._op = "ilike" if ignore_case and field.encrypted is None else "eq"
        self.names = frozenset({field.name, *(f.name for f in within)})

    async def refuse_duplicate(self, ctx: Context, values: Mapping[str, Any], own_id: str | None) -> None:
        """Raise what the unique constraint would raise, if another live record has the value."""
        value = values.get(self._field.name)
        if value is None or (value == "" and self._field.encrypted is not None):
            return  # neither has a digest, so neither is unique
        target = _literal_pattern(value) if self._op == "ilike" else value
        filters: list[tuple[str, str, Any]] = [(self._field.name, self._op, target)]
        filters += [(f.name, "eq", values.get(f.name)) for f in self._within]
        if own_id is None:
            is_used = await ctx.db(self._model.cls).exists(filters)
        elif any(operator_problems(self._model, "neq")):
            records = await ctx.db(self._model.cls).list(filters, limit=2)
            is_used = any(record.id != own_id for record in records)
        else:
            is_used = await ctx.db(self._model.cls).exists([*filters, ("id", "neq", own_id)])
        if is_used:
            raise self._refusal()

    def _refusal(self) -> ConstraintViolation:
        error = ConstraintViolation(self._model.table, (self._field.column,))
        if not self._field.hidden:
            error.details = [{"field": self._field.api, "message": error.message}]
        return error


def _literal_pattern(text: str) -> str:
    """A pattern that finds the text itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


class UniqueOnCreate(ValueRule):
    """Looks once everything else about a new record is right."""

    is_last = True

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def judge(self, ctx: Context, draft: RecordDraft) -> Awaitable[Problems]:
        return self._judge(ctx, draft)

    async def _judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        await self._lookup.refuse_duplicate(ctx, draft.values, None)
        return ()


class UniqueOnUpdate(RowCheck):
    """Looks with the row as it will be, which itself does not count."""

    order = 2

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        return not self._lookup.names.isdisjoint(changes)

    async def look(self, ctx: Context, change: RowChange) -> None:
        await self._lookup.refuse_duplicate(ctx, change.outcome, ctx.resource_id)


# -- exists


class ExistsEntry(RuleEntry):
    """An id that must name a record."""

    name = "validate.exists"

    def __init__(self, field: str, model: type[Model] | str, filters: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.fields = (field,)
        self._given = model
        self._target = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
        self._filters = dict(filters or {})

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field = require_field(model, self.fields[0])
        if field.kind not in (Kind.TEXT, Kind.UUID):
            yield f"{field.name} cannot hold an id"
        if problem := unknown_model(self._given, seat.registered):
            yield problem
            return
        target = seat.registered[self._target]
        yield from operator_problems(target, "eq")
        for name in self._filters:
            if find_field(target, name) is None:
                yield f"{self._target} has no field {name!r}{did_you_mean(name, target.by_name)}"

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        yield ExistsRule(require_field(model, self.fields[0]), self._target, self._filters)


class ExistsRule(ValueRule):
    """Looks for the record that an id names."""

    def __init__(self, field: FieldMeta, target: str, filters: Mapping[str, Any]) -> None:
        self.names = frozenset({field.name})
        self._field = field
        self._target = target
        self._filters = [(name, "eq", value) for name, value in filters.items()]
        self._problems = [detail(field.api, "exists", f"must be the id of a {target}")]

    def judge(self, ctx: Context, draft: RecordDraft) -> Awaitable[Problems]:
        return self._judge(ctx, draft)

    async def _judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        value = draft.values.get(self._field.name)
        if value is None:
            return ()
        filters = [("id", "eq", str(value)), *self._filters]
        return () if await ctx.db(self._target).exists(filters) else self._problems
