"""What the entries of `service` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from maniflex.errors import Abort, CallbackFailed, ValidationFailed
from maniflex.middleware.arguments import is_text, plain_value, typed_value
from maniflex.middleware.validate.rule_entry import forbidden_field
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    Entry,
    EntryDocs,
    EntryRule,
    Filled,
    Piece,
    Seat,
    Trait,
    ask,
    describe_nothing,
    require_field,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next, takes
from maniflex.pipeline.rules.checks import Check, RowChange, RowCheck
from maniflex.query.query import find_field

BODIES = frozenset({Operation.CREATE, Operation.UPDATE})


class ServiceEntry(Entry):
    """An entry that sets values of a create or an update; a request without a body passes."""

    homes: ClassVar = {"service": ANYWHERE}
    acts_for = BODIES
    traits = Trait.APPLICATION_TABLES
    sets: str = ""  # the field it writes
    fills_new: ClassVar[bool] = False  # a new record has a value of its own in that field, sent or not
    docs = describe_nothing

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if model is None or operation not in BODIES else self.of_model(model, operation)

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        """The middleware for one model; None where checks do the work."""
        raise NotImplementedError

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        for model in seat.models if self.fills_new else ():
            yield Filled(model, require_field(model, self.sets).name)

    def problems(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            if self.sets and require_field(model, self.sets).name in ("id", "created_at", "updated_at"):
                yield f"{model.name}.{self.sets} is assigned by the framework"
            yield from (f"{model.name}: {problem}" for problem in self.model_problems(model))

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        """What it cannot do to one model."""
        return ()


def set_value(ctx: Context, field: FieldMeta, value: Any) -> None:
    """Set a field; a value that it cannot hold is the server's fault and not the client's."""
    try:
        ctx.set_field(field.name, value)
    except ValidationFailed as error:
        raise CallbackFailed(f"{ctx.model.name}.{field.name} cannot hold the value that was set") from error


# `service.set_field` and `service.copy_field`: values that the server sets.


class _Skip:
    """Returned by a function of `service.set_field`, leaves the field as it is."""

    def __repr__(self) -> str:
        return "service.SKIP"


SKIP: Final = _Skip()


def set_field(field: str, value: Any) -> Entry:
    """Set a field to a value, or to what a function of the context gives; a client's value loses."""
    return SetEntry(field, value)


def copy_field(source: str, target: str) -> Entry:
    """Set a field that was not sent to the value of another."""
    return CopyEntry(source, target)


class SetEntry(ServiceEntry):
    """Sets one field."""

    name = "service.set_field"
    fills_new = True

    def __init__(self, field: str, value: Any) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field
        self._value = value
        if callable(value) and not takes(value, 1):
            self.mistakes.append("the function is called with (ctx), which it does not take")

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        field, source = require_field(model, self.sets), self._value

        async def set_one(ctx: Context, next: Next) -> None:
            if ctx._body is not None:
                value = await ask(ctx, source, ctx) if callable(source) else source
                if value is not SKIP:
                    set_value(ctx, field, value)
            await next()

        return set_one


class CopyEntry(ServiceEntry):
    """Copies one field to another."""

    name = "service.copy_field"
    fills_new = True

    def __init__(self, source: str, target: str) -> None:
        super().__init__()
        self.fields, self.sets = (source, target), target
        if source == target:
            self.mistakes.append("source and target are one field")

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        source, target = (require_field(model, name) for name in self.fields)

        async def copy(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and target.api not in body:
                value = ctx.field(source.name)
                if value is not None:
                    set_value(ctx, target, value)
            await next()

        return copy


# `service.strip_field`: what a client sends and no record keeps, such as a password sent twice.


_FIRST = -10  # before the entries that look at unknown keys


def strip_field(*names: str) -> Entry:
    """Take keys out of body and record before the database; they may be no fields at all."""
    return StripEntry(names)


class StripEntry(ServiceEntry):
    """Takes names out, and lets those that are no fields count as expected."""

    name = "service.strip_field"

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names
        if not names or not all(map(is_text, names)):
            self.mistakes.append("name the keys to take out")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (
            Piece("deserialize", self._expect, At.AFTER, _FIRST),
            Piece("service", self.make, seat.at),
        )

    def _expect(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in BODIES:
            return None
        extra_names = frozenset(name for name in self._names if find_field(model, name) is None)
        if not extra_names:
            return None

        async def expect(ctx: Context, next: Next) -> None:
            ctx.extra_names |= extra_names
            await next()

        return expect

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        fields = {name: find_field(model, name) for name in self._names}
        names = [name if field is None else field.name for name, field in fields.items()]

        async def strip(ctx: Context, next: Next) -> None:
            if ctx._body is not None:
                for name in names:
                    ctx.delete_field(name)
            await next()

        return strip


# `service.owner_scope`: a new record belongs to its caller.


_MISMATCHES = ("refuse", "overwrite")


def owner_scope(
    field: str, *, mismatch: str = "refuse", unless_role: str | Iterable[str] | None = None
) -> Entry:
    """Set a field of a new record to its caller; it stamps records and does not bind reads."""
    return OwnerEntry(field, mismatch, unless_role)


class OwnerEntry(ServiceEntry):
    """Stamps the caller into new records, before the rules of the fields ask for the value."""

    name = "service.owner_scope"
    fills_new = True
    acts_for = frozenset({Operation.CREATE})

    def __init__(self, field: str, mismatch: str, unless_role: str | Iterable[str] | None) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field
        roles = (unless_role,) if isinstance(unless_role, str) else tuple(unless_role or ())
        self._exempt_roles = frozenset(roles)
        if not all(map(is_text, roles)):
            self.mistakes.append(f"unless_role is the name of a role, not {unless_role!r}")
        self._overwrites = mismatch == "overwrite"
        if mismatch not in _MISMATCHES:
            self.mistakes.append(f"mismatch={mismatch!r} is none of {', '.join(map(repr, _MISMATCHES))}")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("deserialize", self.make, At.AFTER, operations=frozenset({Operation.CREATE})),)

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        return () if self._exempt_roles else super().rules(seat)  # those with such a role are asked

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        field = require_field(model, self.sets)
        if field.kind not in (Kind.TEXT, Kind.UUID):
            yield f"{field.name} cannot hold the id of a caller"

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        if operation is not Operation.CREATE:
            return None
        mismatch = {} if self._overwrites else {403: ["FIELD_FORBIDDEN"]}
        return EntryDocs(refusals={401: ["UNAUTHORIZED"], **mismatch})

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        if operation is not Operation.CREATE:
            return None
        field = require_field(model, self.sets)

        async def stamp_owner(ctx: Context, next: Next) -> None:
            body = ctx._body
            auth = ctx.auth
            is_exempt = auth is not None and not self._exempt_roles.isdisjoint(auth.roles)
            if body is not None and not is_exempt:
                if auth is None or not auth.user_id:
                    headers = {"www-authenticate": "Bearer"}
                    raise Abort(401, "UNAUTHORIZED", "sign in first", headers=headers)
                client_value = body[field.api] if body.is_from_client(field.api) else None
                if client_value is not None and str(client_value) != auth.user_id and not self._overwrites:
                    raise forbidden_field(field)
                ctx.set_field(field.name, auth.user_id)
            await next()

        return stamp_owner


# `service.timestamp` and `service.timestamp_when`: moments that the server notes.


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
