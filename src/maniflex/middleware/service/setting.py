"""`service.set_field` and `service.copy_field`: values that the server sets."""

from __future__ import annotations

from typing import Any, Final

from maniflex.middleware.service.service_entry import ServiceEntry, set_value
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, ask, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next, takes


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
