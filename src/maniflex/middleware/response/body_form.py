"""`response.envelope`: the whole body of successful answers in a form of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from maniflex.middleware.response.ranks import ENVELOPE
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Placement, Seat, ask
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.redacted_answers import write_for_caller
from maniflex.pipeline.registration import Middleware, Next, takes
from maniflex.pipeline.response import JSON, Response

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
