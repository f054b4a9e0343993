"""`response.redact_field`: a field that some callers neither see nor ask about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from maniflex.middleware.response.header import ENVELOPE, REDACT
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    Entry,
    EntryDocs,
    FieldTransform,
    Piece,
    Placement,
    Seat,
    Trait,
    ask,
    describe_nothing,
    require_field,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next, takes
from maniflex.pipeline.response import JSON, Response
from maniflex.pipeline.rules.redactions import RedactionRule, write_for_caller
from maniflex.pipeline.rules.transforms import Change, Transform
from maniflex.query.query import find_field


def redact_field(field: str, when: Callable[..., Any], *, closes_queries: bool = True) -> RedactField:
    """Take the field out of all records that a caller is shown, where `when(ctx)` is true for them.

    Such a caller cannot filter or sort by it either; `closes_queries=False` allows that.
    """
    return RedactField(field, when, closes_queries)


class RedactField(Entry):
    """Hides one field from some callers, wherever records of its models show."""

    name = "response.redact_field"
    homes: ClassVar = {"response": ANYWHERE}
    # Actions may show records of any model.
    traits = Trait.ACTS_WITHOUT_ROUTES | Trait.VARIES_BY_CALLER | Trait.COMPUTED_FIELDS
    docs = describe_nothing  # what a caller is not shown depends on who it is; no answer requires a field

    def __init__(self, field: Any, when: Any, closes_queries: Any) -> None:  # types are promises until here
        super().__init__()
        self.fields = (field,)
        self._when = when
        self._closes_queries = closes_queries
        if not isinstance(field, str) or not field:
            self.mistakes.append(f"a field is named by a text, not {field!r}")
        if not callable(when):
            self.mistakes.append(f"{when!r} is not callable")
        elif not takes(when, 1):
            self.mistakes.append("its function is called with (ctx), which it does not take")
        if not isinstance(closes_queries, bool):
            self.mistakes.append(f"closes_queries is True or False, not {closes_queries!r}")

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None  # its work is done where records become answers and queries are read

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=REDACT),)

    def problems(self, seat: Seat) -> Iterable[str]:
        for meta in seat.models:
            field = find_field(meta, self.fields[0])
            if field is not None and field.name == "id":
                yield f"{meta.name}.id is how its records are found, so it cannot be hidden"
            elif seat.is_named and meta.is_internal:
                yield f"{meta.name} is a table of the framework, whose routes know their callers themselves"
            elif seat.is_named and field is not None and not field.visible:
                yield f"{meta.name}.{field.name} is in no answer, so there is nothing to hide"

    def rules(self, seat: Seat) -> Iterable[RedactionRule]:
        for meta in seat.models:
            field = find_field(meta, self.fields[0])
            is_shown = field is None or field.visible
            if is_shown and not meta.is_internal:
                key = self.fields[0] if field is None else field.api
                yield RedactionRule(meta.cls, key, field, self._when, self._closes_queries, seat.operations)


# `response.transform_field`: a field that answers show in another form than it is stored in.


def transform_field(field: str, fn: Callable[..., Any]) -> TransformField:
    """Show `fn(value)`, or `fn(ctx, value)`, wherever records show the field; None is passed to it too."""
    return TransformField(field, fn)


class TransformField(Entry):
    """Changes the value of one field in answers."""

    name = "response.transform_field"
    docs = describe_nothing
    homes: ClassVar = {"response": ANYWHERE}
    traits = Trait.APPLICATION_TABLES

    def __init__(self, field: str, fn: Any) -> None:  # its type is only a promise until here
        super().__init__()
        self.fields = (field,)
        if not callable(fn):
            self.mistakes.append(f"{fn!r} is not callable")
        elif not (takes(fn, 1) or takes(fn, 2)):
            self.mistakes.append(
                "its function is called with (value) or (ctx, value), which it does not take"
            )
        self._change = _change(fn)

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return ()

    def problems(self, seat: Seat) -> Iterable[str]:
        for meta in seat.models if seat.is_named else ():
            field = require_field(meta, self.fields[0])
            if not field.visible:
                yield f"{meta.name}.{field.name} is in no answer, so there is nothing to transform"

    def rules(self, seat: Seat) -> Iterable[FieldTransform]:
        for meta in seat.models:
            field = require_field(meta, self.fields[0])
            yield FieldTransform(meta.cls, Transform(field, self._change, seat.operations))


def _change(fn: Any) -> Change:
    if callable(fn) and not takes(fn, 1):
        return lambda ctx, value: ask(ctx, fn, ctx, value)

    async def change(ctx: Context, value: Any) -> Any:
        return await ask(ctx, fn, value)

    return change


# `response.envelope`: the whole body of successful answers in a form of your own.


_UNCHANGED = frozenset({Operation.EXPORT, Operation.OPTIONS, Operation.READ_ATTACHMENT})


def envelope(fn: Callable[..., Any], *, schema: Mapping[str, Any] | None = None) -> Envelope:
    """Answer with what `fn(ctx, data, meta)` gives, in the place of `{"data": …, "meta": …}`.

    `schema` is its JSON Schema, for the API description.
    """
    return Envelope(fn, schema)


class Envelope(Entry):
    """Puts the data of successful JSON answers into another body."""

    name = "response.envelope"
    homes: ClassVar = {"response": ANYWHERE}

    def __init__(self, fn: Any, schema: Mapping[str, Any] | None) -> None:
        super().__init__()
        self._fn = fn
        self.schema = schema
        if not callable(fn) or not takes(fn, 3):
            self.mistakes.append("its function is called with (ctx, data, meta), which it does not take")

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if operation in _UNCHANGED else self

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=ENVELOPE),)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return None if operation in _UNCHANGED or self.schema is None else EntryDocs(body=self.schema)

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        others = [other for entry, other in placement.seats if entry.name == self.name and other is not seat]
        if any(seat.overlaps(other) for other in others):
            yield "an answer has one envelope; another is registered for the same routes"

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        response: Any = ctx.response
        if type(response) is not Response or not _has_data(response):
            return
        # Always what a client would read, whichever way the answer was made.
        body = await write_for_caller(ctx, response)
        whole = msgspec.json.decode(body)
        if isinstance(whole, dict) and "data" in whole:
            content = await ask(ctx, self._fn, ctx, whole["data"], whole.get("meta"))
            response.body = ctx.runtime.encode(content)


def _has_data(response: Response) -> bool:
    is_success = response.status < 300 and response.status != 204
    return is_success and response.stream is None and response.content_type == JSON and not response.error
