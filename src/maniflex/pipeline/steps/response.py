"""Rows → the answer. Rows no middleware has looked at go straight to bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from maniflex._locales import LocaleOptions, LocaleView
from maniflex.db.budget import Budget
from maniflex.db.port import Row
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.response import Encode, Response, language_headers, no_answer_error
from maniflex.pipeline.rules.model_rules import ModelRules
from maniflex.pipeline.rules.redactions import NONE
from maniflex.pipeline.rules.transforms import Computed, Transform, change_records
from maniflex.pipeline.serializer import (
    Changing,
    Serializer,
    SerializersInView,
    cursor_meta,
    encode_in_parts,
    serialize_related,
)
from maniflex.pipeline.threads import LARGE
from maniflex.query.query import Query


class Respond:
    """The response step of one model."""

    def __init__(
        self,
        serializer: Serializer,
        computed: Sequence[Computed],
        *,
        etags: bool,
        transforms: Sequence[Transform] = (),
        counts: bool = True,
    ) -> None:
        self._serializer = serializer
        self._computed = tuple(computed)
        self._etags = etags
        self._transforms = tuple(transforms)
        self._counts = counts  # otherwise no total is known, or it would tell of rows that a policy hides
        self._plain = not (self._computed or self._transforms)
        self._plain_list = self._plain and counts

    def answer_created(self, ctx: Context) -> Awaitable[None] | None:
        return self._answer_one(ctx, 201) if ctx.response is None else None

    @property
    def is_plain(self) -> bool:
        """Whether an answer has nothing but the row in it."""
        return type(self) is Respond and self._plain

    def make_created(self, row: Row) -> Response:
        """The plain answer to a create, where no query of the client has a part in it."""
        response = Response(201, body=self._serializer.encode_one(row))
        if self._etags:
            response.headers = {"etag": self._serializer.etag(row)}
        return response

    def answer_record(self, ctx: Context) -> Awaitable[None] | None:
        return self._answer_one(ctx, 200) if ctx.response is None else None

    def answer_deleted(self, ctx: Context) -> None:
        if ctx.response is None and not ctx.deleted:
            raise no_answer_error(ctx)
        self.answer_empty(ctx)

    def answer_empty(self, ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(204)

    def answer_list(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        result, rows, listing = ctx._result, ctx.rows, ctx.listing
        query = ctx.current_query() if listing is None else listing.query
        if result is None and rows is None:
            raise no_answer_error(ctx)
        plain = self._plain_list and not ctx.related and query.select is None and query.cursor is None
        if result is None and rows is not None and plain:
            budget = ctx.budget
            if budget is not None and budget.used > LARGE:
                return self._answer_large_rows(ctx, query, rows, budget)
            body = self._serializer.encode_many(rows, ctx.total, query.page, query.limit or 1)
            if budget is not None and len(body) > budget.most:
                budget.check(len(body))
            ctx.response = Response(200, body=body)
        elif result is None or isinstance(result, Page):
            return self._answer_page(ctx, query)
        else:
            ctx.response = Response(200, result)
        return None

    async def _answer_large_rows(
        self, ctx: Context, query: Query, rows: Sequence[Row], budget: Budget
    ) -> None:
        page = (rows, ctx.total, query.page, query.limit or 1, budget)
        write = partial(self._serializer.encode_many_in_parts, *page)
        body = await ctx.runtime.offload.run(budget.used, write)
        budget.check(len(body))
        ctx.response = Response(200, body=body)

    def _answer_one(self, ctx: Context, status: int) -> Awaitable[None] | None:
        """Answer with one record; what has to be computed or was loaded along is left to await."""
        result, row = ctx._result, ctx.row
        if result is not None and not self._serializer.fits(result):
            ctx.response = Response(status, result)
            return None
        shown_row = row if result is None else self._serializer.row(result)
        if shown_row is None:
            raise no_answer_error(ctx)
        select = None if ctx._query is None else ctx._query.select
        if not self._plain or select is not None or ctx.related:
            return self._answer_whole(ctx, status, shown_row, select)
        ctx.response = Response(status, body=self._serializer.encode_one(shown_row))
        if self._etags:
            self._tag(ctx)
        return None

    async def _answer_whole(
        self, ctx: Context, status: int, row: Row, select: Sequence[FieldMeta] | None
    ) -> None:
        serializer = (
            self._serializer if select is None else self._serializer.of(self._serializer.meta.fields, select)
        )
        [data] = await self._record_values(ctx, serializer, [row], select is not None)
        direction = self._serializer.direction
        body = ctx.runtime.encode({"data": data, "meta": direction} if direction else {"data": data})
        if ctx.budget is not None:
            ctx.budget.check(len(body))
        ctx.response = Response(status, body=body)
        if self._etags:
            self._tag(ctx)

    def _tag(self, ctx: Context) -> None:
        if ctx.row is not None and ctx.response is not None:
            ctx.response.headers = {"etag": self._serializer.etag(ctx.row)}

    async def _answer_page(self, ctx: Context, query: Query) -> None:
        select = query.select
        listing = ctx.listing or ctx.runtime.stores[ctx.model.cls].listing(query)  # middleware found the rows
        fields = listing.fields
        serializer = self._serializer if select is None else self._serializer.of(fields, select)
        rows: Sequence[Row] = ctx.rows or ()
        total, page, limit = ctx.total, query.page, query.limit or 1
        if ctx._result is not None:
            result: Page = ctx._result
            total, page, limit = result.total, result.page, result.limit or 1
            result.items = items = list(result.items)
            if not all(map(self._serializer.fits, items)):
                meta = self._page_meta(ctx, total, page, limit)
                ctx.response = Response(200, items, meta=meta)
                return
            rows = [serializer.row(record) for record in items]
        data = await self._record_values(ctx, serializer, rows, select is not None)
        if query.cursor is not None:
            rows = ctx.rows or ()
            ends = ctx.page_ends or ((rows[0], rows[-1]) if rows else None)
            meta = {**cursor_meta(query, ends, fields, ctx.more), **self._serializer.direction}
        else:
            meta = self._page_meta(ctx, total, page, limit)
        encode, budget = ctx.runtime.encode, ctx.budget
        if budget is None or (budget.used <= LARGE and not ctx.related):
            body = encode({"data": data, "meta": meta})
        elif budget.used <= LARGE:
            body = _page_in_parts(encode, data, meta, budget)
        else:
            write = partial(_page_in_parts, encode, data, meta, budget)
            body = await ctx.runtime.offload.run(budget.used, write)
        if budget is not None and len(body) > budget.most:
            budget.check(len(body))
        ctx.response = Response(200, body=body)

    def _page_meta(self, ctx: Context, total: int, page: int, limit: int) -> dict[str, Any]:
        direction = self._serializer.direction
        if not self._counts:
            return {"page": page, "limit": limit, "has_more": ctx.more, **direction}
        return {"total": total, "page": page, "limit": limit, "pages": -(-total // limit), **direction}

    async def _record_values(
        self, ctx: Context, serializer: Serializer, rows: Sequence[Row], partial: bool
    ) -> list[dict[str, Any]]:
        """The visible fields of each row, its computed fields and its included records."""
        data = [serializer.fields(row) for row in rows]
        if self._computed and not partial and rows:
            result = ctx.result
            records = result.items if isinstance(result, Page) else [result]
            for computed_field in self._computed:
                await computed_field.add_to(ctx, records, data)
        if self._transforms:
            await change_records(ctx, (t for t in self._transforms if t.covers(ctx.operation)), data)
        if ctx.related:
            changing: Changing = []
            runtime = ctx.runtime
            serializers: Mapping[type[Model], Serializer] = runtime.serializers
            if runtime.rules.has_redactions:
                serializers = await runtime.rules.included_serializers(ctx)
            serializers = SerializersInView(serializers, self._serializer.view)
            for values, relations in zip(data, ctx.related, strict=False):
                values.update(serialize_related(serializers, runtime.rules, relations, changing))
            for model, records in changing:
                await change_records(ctx, runtime.rules[model].changes_of_included, records)
        return data


def _page_in_parts(encode: Encode, data: Sequence[Any], meta: Any, budget: Budget) -> bytes:
    """A page that may be large: a record many rows refer to stands in it as many times."""
    at_once = 1 if budget.used > LARGE else 8
    return b'{"data":' + encode_in_parts(encode, data, budget, at_once) + b',"meta":' + encode(meta) + b"}"


# The response step of a model whose answers show texts in several languages.
#
# For each language there is a step of its own, made when it is first asked for.


class LocalizedRespond(Respond):
    """Chooses the response step of each request by the language that it asks for."""

    def __init__(
        self, serializer: Serializer, make: Callable[[Serializer], Respond], options: LocaleOptions
    ) -> None:
        super().__init__(serializer, (), etags=False)
        self._make = make
        self._options = options
        self._steps: dict[LocaleView, Respond] = {}
        self._headers: dict[str, dict[str, str]] = {}

    def answer_created(self, ctx: Context) -> Awaitable[None] | None:
        return self._mark(ctx, self._step(ctx).answer_created(ctx)) if ctx.response is None else None

    def answer_record(self, ctx: Context) -> Awaitable[None] | None:
        return self._mark(ctx, self._step(ctx).answer_record(ctx)) if ctx.response is None else None

    def answer_list(self, ctx: Context) -> Awaitable[None] | None:
        return self._mark(ctx, self._step(ctx).answer_list(ctx)) if ctx.response is None else None

    def _step(self, ctx: Context) -> Respond:
        view = ctx.view
        step = self._steps.get(view)
        if step is None:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            step = self._steps[view] = self._make(self._serializer.in_view(view))
        return step

    def _mark(self, ctx: Context, answering: Awaitable[None] | None) -> Awaitable[None] | None:
        """Say in the headers which language the answer is in, once it is there."""
        if answering is not None:
            return self._mark_later(ctx, answering)
        response, locale = ctx.response, ctx.view.locale
        if response is not None:
            headers = self._headers.get(locale) or self._headers_of(locale)
            if response.headers is None:
                response.headers = headers.copy()
                return None
            tag = response.headers.get("etag")
            response.headers.update(headers)
            if tag is not None and locale:
                response.headers["etag"] = f'{tag[:-1]}.{locale}"'
        return None

    def _headers_of(self, locale: str) -> dict[str, str]:
        if len(self._headers) >= _MOST_STEPS:
            self._headers.clear()
        headers = language_headers(locale or self._options.default, by_header=self._options.from_header)
        self._headers[locale] = headers
        return headers

    async def _mark_later(self, ctx: Context, answering: Awaitable[None]) -> None:
        await answering
        self._mark(ctx, None)


# The response step of a model with fields that some callers may not see.
#
# A caller who sees everything is answered by the usual step; for each set of hidden fields there is a
# step of its own, made when it is first needed.


_MOST_STEPS = 64


class RedactedRespond(Respond):
    """Chooses the response step of each request by the fields that are hidden from its caller."""

    def __init__(
        self,
        serializer: Serializer,
        computed: Sequence[Computed],
        rules: ModelRules,
        *,
        etags: bool,
        counts: bool,
    ) -> None:
        super().__init__(serializer, computed, etags=etags, transforms=rules.transforms, counts=counts)
        self._rules = rules
        self._usual = Respond(serializer, computed, etags=etags, transforms=rules.transforms, counts=counts)
        self._steps: dict[frozenset[str], Respond] = {}

    def answer_created(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        hidden = self._rules.hidden_fields(ctx)
        if hidden is NONE:
            return self._usual._answer_one(ctx, 201)
        if isinstance(hidden, frozenset):
            return self._step(hidden).answer_created(ctx)
        return self._answer_later(ctx, hidden, "answer_created")

    def answer_record(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        hidden = self._rules.hidden_fields(ctx)
        if hidden is NONE:
            return self._usual._answer_one(ctx, 200)
        if isinstance(hidden, frozenset):
            return self._step(hidden).answer_record(ctx)
        return self._answer_later(ctx, hidden, "answer_record")

    def answer_list(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        hidden = self._rules.hidden_fields(ctx)
        if hidden is NONE:
            return self._usual.answer_list(ctx)
        if isinstance(hidden, frozenset):
            return self._step(hidden).answer_list(ctx)
        return self._answer_later(ctx, hidden, "answer_list")

    async def _answer_later(self, ctx: Context, waiting: Awaitable[frozenset[str]], name: str) -> None:
        hidden = await waiting
        outcome = getattr(self._step(hidden), name)(ctx)
        if outcome is not None:
            await outcome

    def _step(self, hidden: frozenset[str]) -> Respond:
        if not hidden:
            return self._usual
        step = self._steps.get(hidden)
        if step is None:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            computed_fields = [field for field in self._computed if field.name not in hidden]
            step = self._steps[hidden] = Respond(
                self._serializer.without(hidden),
                computed_fields,
                etags=self._etags,
                transforms=self._transforms,
                counts=self._counts,
            )
        return step
