"""`?as_of=`: records and lists of versioned models as they were at a moment.

The usual routes of the model take it; such a request is READ_HISTORY, so that rules for reading records
and rules for reading histories both stand before it. Requests without it go their usual way.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from maniflex.db.budget import Budget
from maniflex.db.past_rows import PastRecord
from maniflex.errors import InvalidQuery
from maniflex.features.history import page_meta, past_rows
from maniflex.features.history_options import keeps_snapshots
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import ModelMeta
from maniflex.model.texts import TEXT, localized_fields
from maniflex.pipeline.chain import Default, Handler
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.languages import mark_shown_language
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.rules.transforms import change_records
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.scope import singleton_id
from maniflex.query.query import Filter, Narrowed, Query, Scope, leaves

_NAME = b"as_of"
_PAIR = re.compile(rb"(?:^|&)as_of=[^&]*|(?:^|&)as_of(?=&|$)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[ +-]\d\d:\d\d)\Z")


def with_as_of(routes: RouteBuilder, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """The endpoints, those of versioned models with a way into the past."""
    return [_with_as_of(routes, e) if _takes_part(routes, e) else e for e in endpoints]


def _takes_part(routes: RouteBuilder, endpoint: Endpoint) -> bool:
    model = endpoint.model
    if (
        model is None
        or not is_versioned(model.options)
        or history_model(model.cls) not in routes.runtime.stores
    ):
        return False
    return endpoint.path in (f"/{model.table}", f"/{model.table}/{{id}}")


def _with_as_of(routes: RouteBuilder, endpoint: Endpoint) -> Endpoint:
    model = endpoint.model
    assert model is not None
    if endpoint.operation in Operation.WRITES:
        return replace(endpoint, main=_Switch(endpoint.main, _refuse))
    if endpoint.method not in ("GET", "HEAD"):
        return endpoint
    steps = PastSteps(routes.runtime, model)
    item = endpoint.on_one
    defaults: dict[str, Default] = {
        "deserialize": steps.read_query,
        "db": steps.read if item else steps.read_list,
    }
    past = routes.endpoint(
        endpoint.method,
        endpoint.path,
        Operation.READ_HISTORY,
        model=model,
        defaults=defaults,
        also=((routes.runtime.stores[history_model(model.cls)].meta, Operation.READ_HISTORY),),
        respond=steps.answer_one if item else steps.answer_list,
        item=item,
    )
    return replace(
        endpoint,
        main=_Switch(endpoint.main, _begin(past.main)),
        respond=_Switch(endpoint.respond, past.respond),
    )


class _Switch:
    """The way of requests for the past, and that of all others."""

    def __init__(self, usual: Handler, past: Handler) -> None:
        self._usual = usual
        self._past = past

    def __call__(self, ctx: Context) -> Awaitable[None]:
        if ctx.as_of is None and _NAME not in ctx.scope["query_string"]:
            return self._usual(ctx)
        return self._choose(ctx)(ctx)

    def _choose(self, ctx: Context) -> Handler:
        is_past = ctx.as_of is not None or _PAIR.search(ctx.scope["query_string"]) is not None
        return self._past if is_past else self._usual


def _begin(main: Handler) -> Handler:
    """The way into the past, with what it takes out of the query string."""

    def run(ctx: Context) -> Awaitable[None]:
        query_string: bytes = ctx.scope["query_string"]
        ctx.as_of = ctx.query_param("as_of"), len(_PAIR.findall(query_string))
        rest = _PAIR.sub(b"", query_string).removeprefix(b"&")
        ctx.scope = {**ctx.scope, "query_string": rest}
        ctx.operation = Operation.READ_HISTORY
        return main(ctx)

    return run


async def _refuse(ctx: Context) -> None:
    raise InvalidQuery("as_of: the past can be read, not written")


def read_moment(text: str, now: datetime) -> datetime:
    """The moment that a client asks for, or `InvalidQuery`."""
    try:
        if not _MOMENT.match(text):
            raise ValueError
        # A "+" of an offset that was not percent-encoded arrives as a blank.
        text = re.sub(r" (\d\d:\d\d)\Z", r"+\1", text.upper())
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidQuery("as_of: a moment such as 2026-01-31T12:00:00Z") from None
    if moment > now:
        raise InvalidQuery("as_of: it is in the future")
    return moment


class PastSteps:
    """The steps of reads of the past of one model."""

    def __init__(self, runtime: Runtime, model: ModelMeta) -> None:
        self._model = model
        self._store = runtime.stores[model.cls]
        self._past = past_rows(runtime, model)
        self._serializer = runtime.serializers[model.cls]
        self._rules = rules = runtime.rules[model.cls]
        self._transforms = rules.changes(Operation.READ_HISTORY)
        self._snapshots = keeps_snapshots(model.options)
        self._most = (model.options.limits or runtime.config.limits).answer_size
        self._has_texts = bool(localized_fields(model))
        self._of_one = rules.judge(Operation.READ_HISTORY, item=True)
        self._of_many = rules.judge(Operation.READ_HISTORY, item=False)

    def read_query(self, ctx: Context) -> None:
        text, count = ctx.as_of
        if count > 1:
            raise InvalidQuery("as_of: one moment at a time")
        moment = read_moment(text, ctx.now())
        self._store.listings.refuse_misplaced(ctx.scope["query_string"])
        query = ctx.current_query()
        for name, is_there in (
            ("include", bool(query.includes)),
            ("q", query.search is not None),
            ("cursor", query.cursor is not None),
        ):
            if is_there:
                raise InvalidQuery(f"{name}: not together with as_of")
        listing = ctx.client_listing
        own = query if listing is None else listing.query
        if any(item.path for item in leaves(own.filters)) or any(sort.path for sort in own.sorts):
            raise InvalidQuery("filter and sort: with as_of they take the record's own fields")
        fields = [*(item.field for item in leaves(own.filters)), *(sort.field for sort in own.sorts)]
        if any(TEXT in field.extra for field in fields):
            raise InvalidQuery("filter and sort: with as_of they take no texts with translations")
        ctx.as_of = moment

    async def read(self, ctx: Context) -> None:
        if self._model.options.singleton:
            ctx.resource_id = singleton_id(self._model, ctx.forced)
        query, scope = self._client_query_and_scope(ctx)
        record = await self._past.at(ctx.resource_id, ctx.as_of, query, scope)
        await self._of_one.require_kept(ctx, ctx.resource_id)
        await self._of_one.require_row(ctx, record.row)
        ctx.past = {ctx.resource_id: record}
        ctx.row = record.row

    async def read_list(self, ctx: Context) -> None:
        if not self._snapshots:
            raise InvalidQuery("as_of: without snapshots only single records can be read as they were")
        query, scope = self._client_query_and_scope(ctx)
        records, ctx.total = await self._past.list(query, scope, ctx.as_of, Budget(self._most))
        place = self._store.sql.names.index("id")
        by_id = {str(record.row[place]): record for record in records}
        if self._of_many:
            allowed = await self._of_many.allowed_kept(ctx, by_id)
            by_id = {
                record_id: record
                for record_id, record in by_id.items()
                if record_id in allowed and await self._of_many.allows_row(ctx, record.row)
            }
        ctx.past = by_id
        ctx.rows = [record.row for record in ctx.past.values()]
        ctx.listing = self._store.listing(query.with_(select=None))

    async def answer_one(self, ctx: Context) -> None:
        if ctx.response is not None:
            return
        if ctx.row is None or not ctx.past:
            raise no_answer_error(ctx)
        record = next(iter(ctx.past.values()))
        row = record.row if ctx._result is None else self._serializer.row(ctx._result)
        data, missing = await self._show(ctx, {ctx.resource_id: record}, [row])
        meta = {"as_of": ctx.as_of, "version": record.version, "missing": missing}
        self._answer(ctx, data[0], meta)

    async def answer_list(self, ctx: Context) -> None:
        if ctx.response is not None:
            return
        if ctx.rows is None or ctx.past is None:
            raise no_answer_error(ctx)
        rows, query = ctx.rows, ctx.current_query()
        if isinstance(ctx._result, Page):
            rows = [self._serializer.row(record) for record in ctx._result.items]
        data, missing = await self._show(ctx, ctx.past, rows)
        counted = not self._of_many.hides_rows
        paging = page_meta(total=ctx.total, page=query.page, limit=query.limit or 1, counted=counted)
        self._answer(ctx, data, {**paging, "as_of": ctx.as_of, "missing": missing})

    def _answer(self, ctx: Context, data: Any, meta: dict[str, Any]) -> None:
        if not self._has_texts:
            ctx.response = Response(200, data, meta=meta)
            return
        serializer = self._serializer.in_view(ctx.view)
        ctx.response = Response(200, data, meta={**meta, **serializer.direction})
        mark_shown_language(ctx, ctx.response)

    def _client_query_and_scope(self, ctx: Context) -> tuple[Query, Scope]:
        """The client's query, and what binds the request: it must hold of the record then and now."""
        query = ctx.current_query()
        listing = ctx.client_listing
        own: Sequence[Filter] = query.filters if listing is None else listing.query.filters
        forced_filters = [item for item in query.filters if not any(item is one for one in own)]
        scope = (*query.forced, *(Narrowed(item, self._model.name) for item in forced_filters))
        return query.with_(filters=tuple(f for f in query.filters if f not in forced_filters)), scope

    async def _show(
        self, ctx: Context, records: dict[str, PastRecord], rows: Sequence[Any]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows as answers, and the fields that a client would see and the history does not keep."""
        secrets = await self._rules.unshown_fields(ctx)
        select = None if ctx._query is None else ctx._query.select
        names = {f.name: f.api for f in self._model.fields if f.visible and f.api not in secrets}
        id_place = self._store.sql.names.index("id")
        serializer = self._serializer.in_view(ctx.view) if self._has_texts else self._serializer
        companions = {field.api: rules.companion for field, rules in localized_fields(self._model)}
        missing: dict[str, None] = {}
        data = []
        for row in rows:
            absent = {names[n] for n in records[str(row[id_place])].missing if n in names}
            missing.update(dict.fromkeys(name for name in names.values() if name in absent))
            values = serializer.fields(row)
            if select is not None:
                values = serializer.of(self._model.fields, select).fields(row)
            untold = absent | secrets
            names_shown = set(values) - untold - {companions[name] for name in untold if name in companions}
            data.append({name: value for name, value in values.items() if name in names_shown})
        await change_records(ctx, self._transforms, data)
        return data, list(missing)
