"""`response.transform_field`: a field that answers show in another form than it is stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat, ask, require_field
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.registration import takes
from maniflex.pipeline.transforms import Change, Transform


def transform_field(field: str, fn: Callable[..., Any]) -> TransformField:
    """Show `fn(value)`, or `fn(ctx, value)`, wherever records show the field; None is passed to it too."""
    return TransformField(field, fn)


class TransformField(Entry):
    """Changes the value of one field in answers."""

    name = "response.transform_field"
    docs = describe_nothing
    homes: ClassVar = {"response": ANYWHERE}
    in_framework_tables = False

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

    def transforms(self, seat: Seat) -> Iterable[tuple[type, Transform]]:
        for meta in seat.models:
            yield meta.cls, Transform(require_field(meta, self.fields[0]), self._change, seat.operations)


def _change(fn: Any) -> Change:
    if callable(fn) and not takes(fn, 1):
        return lambda ctx, value: ask(ctx, fn, ctx, value)

    async def change(ctx: Context, value: Any) -> Any:
        return await ask(ctx, fn, value)

    return change
