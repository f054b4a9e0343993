"""What the entries of `validate` have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from pydantic_core import SchemaError, SchemaValidator, core_schema

from maniflex._locales import locale_code
from maniflex.errors import Abort, InvalidQuery, MissingLocale
from maniflex.middleware.arguments import is_function, is_text
from maniflex.model.meta import NUMBERS, FieldMeta, Kind, ModelMeta
from maniflex.model.texts import locale_rules
from maniflex.model.value_rules import detail
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Piece, Seat, Trait, ask, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.pipeline.rules.checks import Check, Problems, RecordDraft, ValueRule
from maniflex.query.values import convert_value

BODIES = frozenset({Operation.CREATE, Operation.UPDATE})  # operations that bring a body


class RuleEntry(Entry):
    """An entry that is a rule for the body of a create or an update, and no middleware."""

    homes: ClassVar = {"validate": ANYWHERE}
    acts_for = BODIES
    traits = Trait.APPLICATION_TABLES

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return ()

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        return self.checks_of_body(model, operation) if operation in BODIES else ()

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return EntryDocs(refusals=self.codes(operation)) if operation in BODIES else None

    def codes(self, operation: Operation) -> dict[int, tuple[str, ...]]:
        """The codes of its refusals of a create or an update, by status."""
        return {422: ("VALIDATION_FAILED",)}

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        """The rules for the body of one model."""
        raise NotImplementedError

    def problems(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            yield from (f"{model.name}: {problem}" for problem in self.model_problems(model, seat))

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        """What cannot be judged of one model."""
        return ()


# Gates: who may write a field. They answer before any rule for values.


_FIRST = -10  # before other middleware of the step


def restrict_field(field: str, allowed: Callable[[Context], Any]) -> Entry:
    """Let those callers set a field for whom `allowed(ctx)` is true: 403 for others."""
    return FieldGate(field, allowed)


def field_role(field: str, *roles: str) -> Entry:
    """Let callers set a field that have one of the roles: 403 for others, and without roles for all."""
    return RoleGate(field, roles)


def forbidden_field(field: FieldMeta) -> Abort:
    """The refusal of a write that sets a field it may not set."""
    message = f'you may not set "{field.api}"'
    return Abort(403, "FIELD_FORBIDDEN", message, [{"field": field.api, "message": message}])


class FieldGate(Entry):
    """Asks a function of the application whether the caller may set a field."""

    name = "validate.restrict_field"
    homes: ClassVar = {"validate": (At.BEFORE,)}
    acts_for = BODIES

    def __init__(self, field: str, allowed: Callable[[Context], Any]) -> None:
        super().__init__()
        self.fields = (field,)
        self._allowed = allowed
        if not is_function(allowed, 1):
            self.mistakes.append("allowed is a function of (ctx)")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("validate", self.make, At.BEFORE, _FIRST),)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return EntryDocs(refusals={403: ["FIELD_FORBIDDEN"]}) if operation in BODIES else None

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in BODIES:
            return None
        field = require_field(model, self.fields[0])
        is_allowed = self._allowed

        async def guard_field(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and body.is_from_client(field.api) and not await ask(ctx, is_allowed, ctx):
                raise forbidden_field(field)
            await next()

        return guard_field


class RoleGate(FieldGate):
    """Asks for a role of the caller."""

    name = "validate.field_role"

    def __init__(self, field: str, roles: tuple[str, ...]) -> None:
        names = frozenset(map(str, roles))
        super().__init__(field, lambda ctx: ctx.auth is not None and not names.isdisjoint(ctx.auth.roles))
        if not all(map(is_text, roles)):
            self.mistakes.append("roles are texts that are not empty")
        self._has_roles = bool(roles)
        self._terms = f"{field}: {', '.join(sorted(names))}"

    @property
    def terms(self) -> str:
        return self._terms

    def warnings(self, seat: Seat) -> Iterable[str]:
        if not self._has_roles:
            yield f"no role is named, so nobody may set {self.fields[0]}"


# `validate.require_locale`: translations that a text must have.


def require_locale(field: str, *locales: str) -> Entry:
    """Ask for translations of a field into these languages: 422 `MISSING_LOCALE` with each that is missing.

    An update is judged when it changes the field, by the translations as they will be.
    """
    return LocaleEntry(field, locales)


class LocaleEntry(RuleEntry):
    """Locales that a field must have texts in."""

    name = "validate.require_locale"

    def __init__(self, field: str, locales: tuple[str, ...]) -> None:
        super().__init__()
        self.fields = (field,)
        self._locales = tuple(locale_code(code) or "" for code in locales)
        if not locales:
            self.mistakes.append("name the locales that are needed")
        self.mistakes += [f"{code!r} is not a locale code" for code in locales if locale_code(code) is None]

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field = model.field(self.fields[0])
        if field is None:
            return
        rules = locale_rules(field)
        if rules is None:
            yield f"{field.name} has no translations; its type is not LocaleString"
        elif rules.options.supported:
            choices = ", ".join(rules.options.supported)
            for code in self._locales:
                if code not in rules.options.supported:
                    yield f"{code} is not among the supported locales: {choices}"

    def codes(self, operation: Operation) -> dict[int, tuple[str, ...]]:
        return {422: ("MISSING_LOCALE",)}

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        return (NeedsLocales(require_field(model, self.fields[0]), self._locales),)


class NeedsLocales(ValueRule):
    """Judges whether a text has the translations that are needed."""

    reads_row = True

    def __init__(self, field: FieldMeta, locales: Sequence[str]) -> None:
        self._field = field
        self._locales = locales
        self.names = frozenset({field.name})

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        texts = draft.values.get(self._field.name)
        missing = [] if texts is None else [code for code in self._locales if not texts.get(code)]
        if missing:
            name = self._field.api
            details = [detail(f"{name}.{code}", "locale", f"needs a text in {code}") for code in missing]
            raise MissingLocale(details=details, model=ctx.model.name)
        return ()


# Rules for the value of one field: patterns and forbidden values.


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

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
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

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
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

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
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


# `validate.numeric_precision`: how many digits a number may have, as it was written.


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

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        yield PrecisionRule(require_field(model, self.fields[0]), self._precision, self._scale)


class PrecisionRule(ValueRule):
    """Counts the digits of one field."""

    def __init__(self, field: FieldMeta, precision: int, scale: int) -> None:
        self.names = frozenset({field.name})
        self._field = field
        self._is_number = field.kind in NUMBERS
        self._precision, self._scale = precision, scale

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
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
