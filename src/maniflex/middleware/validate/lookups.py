"""Rules that look at other rows: values that must be unique, ids that must name a record."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from maniflex._names import did_you_mean
from maniflex.db.backed_store import operator_problems
from maniflex.errors import ConstraintViolation
from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.model.base import Model
from maniflex.model.messages import detail
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.registry import unknown_model
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Seat, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.checks import Check, Draft, Problems, RowChange, RowCheck, ValueRule
from maniflex.query.query import find_field


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

    def judge(self, ctx: Context, draft: Draft) -> Awaitable[Problems]:
        return self._judge(ctx, draft)

    async def _judge(self, ctx: Context, draft: Draft) -> Problems:
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

    def judge(self, ctx: Context, draft: Draft) -> Awaitable[Problems]:
        return self._judge(ctx, draft)

    async def _judge(self, ctx: Context, draft: Draft) -> Problems:
        value = draft.values.get(self._field.name)
        if value is None:
            return ()
        filters = [("id", "eq", str(value)), *self._filters]
        return () if await ctx.db(self._target).exists(filters) else self._problems
