"""`service.strip_field`: what a client sends and no record keeps, such as a password sent twice."""

from __future__ import annotations

from collections.abc import Iterable

from maniflex.middleware.arguments import is_text
from maniflex.middleware.service.service_entry import BODIES, ServiceEntry
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.query.query import find_field

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
