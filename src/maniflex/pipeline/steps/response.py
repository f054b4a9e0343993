"""Rows → the answer. Rows no middleware has looked at go straight to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.db.port import Row
from maniflex.model.base import Model
from maniflex.pipeline.computed import Computed
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.response import Response
from maniflex.pipeline.wire import Wire


class Respond:
    """The response step of one model."""

    def __init__(self, wire: Wire, computed: Sequence[Computed], *, etags: bool) -> None:
        self._wire = wire
        self._computed = tuple(computed)
        self._etags = etags
        self._plain = not self._computed

    async def created(self, ctx: Context) -> None:
        if ctx.response is None:
            await self._one(ctx, 201)

    async def found(self, ctx: Context) -> None:
        if ctx.response is None:
            await self._one(ctx, 200)

    def deleted(self, ctx: Context) -> None:
        if ctx.response is None and not ctx.reached:
            raise unanswered()
        self.gone(ctx)

    def gone(self, ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(204)

    async def listed(self, ctx: Context) -> None:
        if ctx.response is not None:
            return
        result = ctx._result
        if result is None and ctx.rows is Context.rows:
            raise unanswered()
        if result is None and self._plain:
            query = ctx.query
            body = self._wire.many(ctx.rows, ctx.total, query.page, query.limit or 1)
            ctx.response = Response(200, body=body)
        elif result is None or isinstance(result, Page):
            await self._page(ctx, ctx.result)
        else:
            ctx.response = Response(200, result)

    async def _one(self, ctx: Context, status: int) -> None:
        result, row = ctx._result, ctx.row
        if result is not None and not isinstance(result, Model):
            ctx.response = Response(status, result)
            return
        shown = row if result is None else self._wire.row(result)
        if shown is None:
            raise unanswered()
        if self._plain:
            ctx.response = Response(status, body=self._wire.one(shown))
        else:
            [data] = await self._with_computed(ctx, [shown], [ctx.result])
            ctx.response = Response(status, body=ctx.runtime.encode({"data": data}))
        if self._etags and row is not None:
            ctx.response.headers = {"etag": self._wire.etag(row)}

    async def _page(self, ctx: Context, page: Page) -> None:
        rows = [self._wire.row(record) for record in page.items]
        data = await self._with_computed(ctx, rows, page.items)
        pages = -(-page.total // page.limit) if page.limit else 1
        meta = {"total": page.total, "page": page.page, "limit": page.limit, "pages": pages}
        ctx.response = Response(200, body=ctx.runtime.encode({"data": data, "meta": meta}))

    async def _with_computed(self, ctx: Context, rows: Sequence[Row], records: Sequence[Any]) -> list[Any]:
        data = [self._wire.fields(row) for row in rows]
        for computed in self._computed:
            await computed.add_to(ctx, records, data)
        return data


def unanswered() -> RuntimeError:
    """For the log: nothing came of the request, and to call that a success would be a lie."""
    return RuntimeError("a middleware returned without calling next() and without setting ctx.response")
