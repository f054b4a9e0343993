"""`db.paginate`: smaller pages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import ClassVar

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next

_EARLY = -50  # so that other middleware sees the page as it will be


class Paginate(Entry):
    """The largest page of lists."""

    name = "db.paginate"
    docs = describe_nothing
    homes: ClassVar = {"db": (At.BEFORE,), "deserialize": (At.AFTER,)}
    acts_for = frozenset({Operation.LIST})

    def __init__(self, max_limit: int) -> None:
        super().__init__()
        self._most = max_limit
        if type(max_limit) is not int or max_limit < 1:
            self.mistakes.append(f"max_limit={max_limit!r} is not a number of rows, which is 1 or more")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("deserialize", self.make, At.AFTER, _EARLY),)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in (Operation.LIST, Operation.HEAD) else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        query = ctx._query
        if query is not None and ctx.aggregation is None and (query.limit or sys.maxsize) > self._most:
            ctx._query = query.with_(limit=self._most)
        await next()


def paginate(max_limit: int) -> Paginate:
    """Give at most `max_limit` rows to a page of a list, even if `limit` asks for more."""
    return Paginate(max_limit)
