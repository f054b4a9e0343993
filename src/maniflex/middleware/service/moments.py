"""`service.timestamp` and `service.timestamp_when`: moments that the server notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from maniflex.middleware.arguments import plain_value, typed_value
from maniflex.middleware.service.service_entry import ServiceEntry, set_value
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next
from maniflex.pipeline.rules.checks import Check, RowChange, RowCheck


def timestamp(field: str) -> Entry:
    """Set a field to now, unless a client that may set it has sent it."""
    return TimestampEntry(field)


def timestamp_when(field: str, when_field: str, value: Any, *, clear: bool = False) -> Entry:
    """Note when another field changes to a value; with `clear`, forget it when it changes away."""
    return TimestampWhenEntry(field, when_field, value, clear)


class MomentEntry(ServiceEntry):
    """An entry that sets a moment."""

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        field = require_field(model, self.sets)
        if field.kind not in (Kind.DATETIME, Kind.DATE):
            yield f"{field.name} is neither a date nor a date and time"


def moment(ctx: Context, field: FieldMeta) -> Any:
    """Now, as the field holds it."""
    now: datetime = ctx.now()
    return now if field.kind is Kind.DATETIME else now.date()


class TimestampEntry(MomentEntry):
    """Sets a field to now."""

    name = "service.timestamp"
    fills_new = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        field = require_field(model, self.sets)

        async def note_time(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and not body.is_from_client(field.api):
                set_value(ctx, field, moment(ctx, field))
            await next()

        return note_time


class TimestampWhenEntry(MomentEntry):
    """Notes when a field changes to a value; an update is held against the stored row."""

    name = "service.timestamp_when"

    def __init__(self, field: str, when_field: str, value: Any, clear: bool) -> None:
        super().__init__()
        self.fields, self.sets = (field, when_field), field
        self._value, self._clear = value, clear

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        yield from super().model_problems(model)
        field, when_field = (require_field(model, name) for name in self.fields)
        if self._clear and not field.nullable:
            yield f"{field.name} cannot be null, so clear=True cannot empty it"
        try:
            typed_value(when_field, self._value)
        except ValueError as error:
            yield str(error)

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        if operation is not Operation.CREATE:
            return None
        field, when_field = (require_field(model, name) for name in self.fields)
        value = typed_value(when_field, self._value)

        async def note_time(ctx: Context, next: Next) -> None:
            if ctx._body is not None and plain_value(ctx.field(when_field.name)) == value:
                set_value(ctx, field, moment(ctx, field))
            await next()

        return note_time

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        if operation is Operation.UPDATE:
            field, when_field = (require_field(model, name) for name in self.fields)
            yield NoteChange(field, when_field, typed_value(when_field, self._value), self._clear)


class NoteChange(RowCheck):
    """Adds the moment to an update that changes a field to a value."""

    def __init__(self, field: FieldMeta, when_field: FieldMeta, value: Any, clear: bool) -> None:
        self._field, self._when, self._value, self._clear = field, when_field, value, clear

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        return self._when.name in changes

    async def look(self, ctx: Context, change: RowChange) -> None:
        before, after = (plain_value(values[self._when.name]) for values in (change.stored, change.changes))
        if before == after:
            return
        if after == self._value:
            change.changes[self._field.name] = moment(ctx, self._field)
        elif self._clear and before == self._value:
            change.changes[self._field.name] = None
