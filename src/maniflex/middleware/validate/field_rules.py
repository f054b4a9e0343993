"""Rules for the value of one field: patterns and forbidden values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from maniflex.errors import InvalidQuery
from maniflex.middleware.arguments import is_text
from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.model.messages import detail
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.checks import Check, Draft, Problems, ValueRule
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Seat, require_field
from maniflex.pipeline.operation import Operation
from maniflex.query.values import convert_value

ENGINES = ("linear", "python")


def regex_field(field: str, pattern: str, *, message: str | None = None, engine: str = "linear") -> Entry:
    """Refuse texts in which the pattern is not found; it anchors itself where it needs to."""
    return PatternEntry(field, pattern, message, engine)


def forbidden_values(field: str, *values: Any, ignore_case: bool = False) -> Entry:
    """Refuse these values of a field, texts also with blanks around them."""
    return ForbiddenEntry(field, values, ignore_case)


class FieldRule(ValueRule):
    """Asks `finds_fault` for each value of one field that is not null."""

    def __init__(
        self, field: FieldMeta, finds_fault: Callable[[Any], bool], message: str, code: str, own: bool = False
    ) -> None:
        self.names = frozenset({field.name})
        self._name = field.name
        self._finds_fault = finds_fault
        problem = detail(field.api, code, message)
        self._problems = [{**problem, "message": message} if own else problem]

    def judge(self, ctx: Context, draft: Draft) -> Problems:
        value = draft.values.get(self._name)
        return self._problems if value is not None and self._finds_fault(value) else ()


class PatternEntry(RuleEntry):
    """A pattern that a text must contain."""

    name = "validate.regex_field"

    def __init__(self, field: str, pattern: str, message: str | None, engine: str) -> None:
        super().__init__()
        self.fields = (field,)
        self._message = message
        self._pattern = pattern
        self._contains: Callable[[str], bool] = lambda text: True
        if engine not in ENGINES:
            self.mistakes.append(f"engine={engine!r} is none of {', '.join(map(repr, ENGINES))}")
        elif not is_text(pattern):
            self.mistakes.append("a pattern is a text that is not empty")
        elif engine == "python":
            self._use_python(pattern)
        else:
            self._use_linear_time(pattern)

    def _use_python(self, pattern: str) -> None:
        try:
            search = re.compile(pattern).search
        except re.error as error:
            self.mistakes.append(f"the pattern {pattern!r} does not compile: {error}")
        else:
            self._contains = lambda text: search(text) is not None

    def _use_linear_time(self, pattern: str) -> None:
        try:
            self._contains = SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
        except SchemaError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip().startswith("error:")]
            reason = lines[0].removeprefix("error: ") if lines else "the engine cannot read it"
            hint = '; engine="python" takes it' if _is_python(pattern) else ""
            self.mistakes.append(f"the pattern {pattern!r} does not compile: {reason}{hint}")

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field = require_field(model, self.fields[0])
        if field.kind is not Kind.TEXT:
            yield f"{field.name} is no text, so no pattern fits it"

    def rules(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        field = require_field(model, self.fields[0])
        contains = self._contains
        message = self._message or f"must match the pattern {self._pattern}"
        yield FieldRule(field, lambda text: not contains(text), message, "pattern", self._message is not None)


def _is_python(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


class ForbiddenEntry(RuleEntry):
    """Values that a field must not have."""

    name = "validate.forbidden_values"

    def __init__(self, field: str, values: tuple[Any, ...], ignore_case: bool) -> None:
        super().__init__()
        self.fields = (field,)
        self._values = values
        self._ignore_case = ignore_case
        if not values:
            self.mistakes.append("name the values that are forbidden")

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field = require_field(model, self.fields[0])
        if field.kind in (Kind.JSON, Kind.BYTES):
            yield f"{field.name} holds {field.kind}, which cannot be compared"
            return
        for value in self._values:
            try:
                convert_value(value, field, field.api, member=not self._ignore_case)
            except InvalidQuery:
                yield f"{value!r} is no value of {field.name}"

    def rules(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        field = require_field(model, self.fields[0])
        values = [convert_value(value, field, field.api, member=False) for value in self._values]
        fold = _folding(field, self._ignore_case)
        forbidden = {fold(value) for value in values}
        message = "must not have this value"
        yield FieldRule(field, lambda value: fold(value) in forbidden, message, "forbidden")


def _folding(field: FieldMeta, ignore_case: bool) -> Callable[[Any], Any]:
    """The form in which values are compared."""
    if field.kind is not Kind.TEXT:
        return lambda value: value
    if ignore_case:
        return lambda value: str(value).strip().casefold()
    return lambda value: str(value).strip()
