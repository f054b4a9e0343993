"""Rows → the answer. Rows no middleware has looked at go straight to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.db.port import Row
from maniflex.model.base import Model
from maniflex.pipeline.computed import Computed
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.include import shown
from maniflex.pipeline.paging import cursor_meta
from maniflex.pipeline.response import Response
from maniflex.pipeline.wire import Wire
from maniflex.query.tree import Query


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
        result, query = ctx._result, ctx.query
        if result is None and ctx.rows is Context.rows:
            raise unanswered()
        plain = self._plain and not ctx.related and query.select is None and query.cursor is None
        if result is None and plain:
            body = self._wire.many(ctx.rows, ctx.total, query.page, query.limit or 1)
            ctx.response = Response(200, body=body)
        elif result is None or isinstance(result, Page):
            await self._page(ctx, query)
        else:
            ctx.response = Response(200, result)

    async def _one(self, ctx: Context, status: int) -> None:
        result, row = ctx._result, ctx.row
        if result is not None and not isinstance(result, Model):
            ctx.response = Response(status, result)
            return
        shown_row = row if result is None else self._wire.row(result)
        if shown_row is None:
            raise unanswered()
        selected = None if ctx._query is None else ctx._query.select
        if self._plain and selected is None and not ctx.related:
            ctx.response = Response(status, body=self._wire.one(shown_row))
        else:
            wire = self._wire if selected is None else self._wire.of(self._wire.meta.fields, selected)
            [data] = await self._data(ctx, wire, [shown_row], selected is not None)
            ctx.response = Response(status, body=ctx.runtime.encode({"data": data}))
        if self._etags and row is not None:
            ctx.response.headers = {"etag": self._wire.etag(row)}

    async def _page(self, ctx: Context, query: Query) -> None:
        fields = ctx.runtime.stores[ctx.model.cls].listed(query)
        selected = query.select
        wire = self._wire if selected is None else self._wire.of(fields, selected)
        rows: Sequence[Row] = ctx.rows
        total, page, limit = ctx.total, query.page, query.limit or 1
        if ctx._result is not None:
            result: Page = ctx._result
            rows = [wire.row(record) for record in result.items]
            total, page, limit = result.total, result.page, result.limit or 1
        data = await self._data(ctx, wire, rows, selected is not None)
        if query.cursor is not None:
            meta = cursor_meta(query, ctx.rows, fields, ctx.more)
        else:
            meta = {"total": total, "page": page, "limit": limit, "pages": -(-total // limit)}
        ctx.response = Response(200, body=ctx.runtime.encode({"data": data, "meta": meta}))

    async def _data(
        self, ctx: Context, wire: Wire, rows: Sequence[Row], partial: bool
    ) -> list[dict[str, Any]]:
        """The visible fields of each row, with what is computed and what was loaded along."""
        data = [wire.fields(row) for row in rows]
        if self._computed and not partial and rows:
            result = ctx.result
            records = result.items if isinstance(result, Page) else [result]
            for computed in self._computed:
                await computed.add_to(ctx, records, data)
        for values, related in zip(data, ctx.related, strict=False):
            values.update(shown(ctx.runtime, related))
        return data


def unanswered() -> RuntimeError:
    """For the log: nothing came of the request, and to call that a success would be a lie."""
    return RuntimeError("a middleware returned without calling next() and without setting ctx.response")
