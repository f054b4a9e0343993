"""Bytes and query string → body and query."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from maniflex import _json
from maniflex.db.store import Store
from maniflex.errors import EmptyBody, InvalidJson
from maniflex.model.meta import Kind
from maniflex.model.texts import localized_fields
from maniflex.pipeline.body import Body, check_type_of_kept, read_body
from maniflex.pipeline.context import Context
from maniflex.pipeline.languages import BodyTexts
from maniflex.pipeline.threads import LARGE


class Deserialize:
    """The deserialize step of one model."""

    def __init__(self, store: Store) -> None:
        meta = store.meta
        self._listing = store.listings.get
        self._refuse_misplaced = store.listings.refuse_misplaced if store.listings.own.elsewhere else None
        # Fractions keep all their digits only where a field can hold them.
        self._exact = meta.exact
        self._json = tuple(f.api for f in meta.fields if f.kind is Kind.JSON)
        self._texts = BodyTexts(meta) if localized_fields(meta) else None
        self._shows_texts = store.listings.own.locales is not None

    def query(self, ctx: Context) -> None:
        if self._refuse_misplaced is not None:
            self._refuse_misplaced(ctx.scope["query_string"])
        if ctx._query is None:
            ctx.client_listing = listing = self._listing(ctx.scope["query_string"])
            if self._shows_texts:
                ctx.client_listing = listing = listing.in_view(ctx.view)
            ctx._query = listing.query

    def selection(self, ctx: Context) -> None:
        """A single record takes `include`, `select` and filters; order and paging mean nothing to it."""
        if self._refuse_misplaced is not None:
            self._refuse_misplaced(ctx.scope["query_string"])
        if ctx._query is None and ctx.scope["query_string"]:
            ctx.client_listing = listing = self._listing(ctx.scope["query_string"])
            if self._shows_texts:
                ctx.client_listing = listing = listing.in_view(ctx.view)
            ctx._query = listing.query

    def body(self, ctx: Context) -> Awaitable[Any] | None:
        if ctx.raw_body is None:
            return read_body(ctx, self.parse)
        if ctx.is_type_unchecked:
            check_type_of_kept(ctx)
        return self.parse(ctx)

    def parse(self, ctx: Context) -> Awaitable[None] | None:
        """The second half of `body`; a large one is left to await."""
        raw_body = ctx.raw_body
        if not raw_body:
            raise EmptyBody()
        if len(raw_body) > LARGE:
            return self._parse_large(ctx)
        values = self._read(raw_body, ctx.runtime.config.limits.body_values)
        if self._texts is not None:
            self._texts.fold(values, ctx.operation, ctx.locale)
        if ctx._body is None:
            ctx._body = Body(values)
        else:
            _stamp_again(ctx, values)
        return None

    async def _parse_large(self, ctx: Context) -> None:
        values = await ctx.parse_body(self._read)
        if self._texts is not None:
            self._texts.fold(values, ctx.operation, ctx.locale)
        _stamp_again(ctx, values)

    def _read(self, body: bytes, most: int) -> dict[str, Any]:
        """The JSON object of a body, with its JSON columns as they can be stored."""
        values = _json.loads(body, self._exact, most)
        if type(values) is not dict:
            raise InvalidJson("the body must be a JSON object")
        for name in self._json:
            if name in values:
                _json.refuse_long_integers(body, values[name])
                if self._exact:
                    values[name] = _json.as_floats(values[name])
        return values


def _stamp_again(ctx: Context, values: dict[str, Any]) -> None:
    """Let these values be the body, with what middleware has set before there was one."""
    earlier = ctx._body
    ctx._body = Body(values)
    for name, value in () if earlier is None else earlier.items():
        ctx._body.stamp(name, value)
