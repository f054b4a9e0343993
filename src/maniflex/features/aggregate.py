"""`aggregate=True`: GET and HEAD /{table}/aggregate, which answers with groups instead of records.

It is a list by another way, so it runs as LIST: rules for lists cover it, `filter` and `q` narrow it,
forced conditions bind it. What to compute comes as JSON, in `?aggregate=` or in a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from maniflex import _json
from maniflex._locales import NO_LOCALE
from maniflex.config import Limits
from maniflex.db import aggregates as analysis
from maniflex.db.budget import Budget
from maniflex.errors import InvalidJson, InvalidQuery, UriTooLong
from maniflex.model.meta import Kind, ModelMeta
from maniflex.model.texts import query_kind, stored_field
from maniflex.pipeline.body import read_body
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.languages import mark_shown_language
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.rules.reach import reach_again
from maniflex.pipeline.runtime import Runtime
from maniflex.query.aggregate import (
    ALIAS,
    DEFAULT_GROUPS,
    FITTING,
    KEYS,
    MOST_GROUPS,
    Fn,
    entry_for,
    read,
    show_json,
)
from maniflex.query.conditions import is_open
from maniflex.query.operators import ALIASES, OPERATORS, Op
from maniflex.query.parse import pairs

_OF_LISTS = ("page", "limit", "sort", "select", "include", "cursor")
_OF_OTHERS = frozenset({"group_by", "groupby", "order_by", "having", "op", *Fn})
_EXAMPLE = 'aggregate={"select":[{"op":"count"}]}'
_LONGEST_LINE = 300


def aggregate_endpoints(routes: RouteBuilder, model: ModelMeta) -> Iterator[Endpoint]:
    """The route, where the model has opted in."""
    if not model.options.aggregate or model.options.headless:
        return
    step = _Aggregate(routes.runtime, model)
    computing: dict[str, Default] = {"deserialize": step.deserialize, "db": step.compute}
    about = _about(model, step.limits)
    yield from routes.with_options(
        routes.endpoint(
            method,
            f"/{model.table}/aggregate",
            operation,
            model=model,
            defaults=computing,
            outer=[("aggregate", step.refuse_other_grammar)],
            respond=step.respond,
            about=docs,
        )
        for method, operation, docs in (
            ("GET", Operation.LIST, about),
            ("HEAD", Operation.HEAD, about.of_head()),
        )
    )


class _Aggregate:
    """The steps of the route of one model."""

    def __init__(self, runtime: Runtime, model: ModelMeta) -> None:
        self._store = runtime.stores[model.cls]
        self.limits = model.options.limits or runtime.config.limits
        self._transforms = runtime.rules[model.cls].changes(Operation.LIST)

    async def refuse_other_grammar(self, ctx: Context, call_next: Next) -> None:
        """Refuse the parameters of lists, and those that say in another way what to compute.

        It stands before all steps, because rules of the auth step read the query string as that of a list.
        """
        query_string = ctx.scope["query_string"]
        if query_string:
            if len(query_string) > self.limits.uri_length:
                raise UriTooLong(f"a query string has at most {self.limits.uri_length} bytes")
            parameters, own = pairs(query_string), self._store.listings.own.names
            for name, _ in parameters:
                if name in _OF_LISTS or (name in _OF_OTHERS and name not in own):
                    line = _line(parameters)
                    raise InvalidQuery(f"{name}: an aggregate takes filter, q and aggregate; write {line}")
        await call_next()

    async def deserialize(self, ctx: Context) -> None:
        query_string = ctx.scope["query_string"]
        self._store.listings.refuse_misplaced(query_string, taken="aggregate")
        query, spec = ctx.current_query(), await _spec(ctx, pairs(query_string) if query_string else [])
        view = NO_LOCALE if self._store.listings.own.locales is None else ctx.view
        if self._store.listings.guarded:
            read_spec = partial(read, spec, query, self.limits, view=view)
            ctx.aggregation = await ctx.runtime.rules.read(ctx, read_spec)
        else:
            ctx.aggregation = read(spec, query, self.limits, view=view)

    async def compute(self, ctx: Context) -> None:
        if ctx.aggregation is None:  # middleware replaced the deserialize step
            await self.deserialize(ctx)
            await reach_again(ctx)
        # Filters may have been added since the request was read, so they are taken from the query now.
        aggregation, query = ctx.aggregation, ctx.current_query()
        limit = aggregation.limit or DEFAULT_GROUPS
        filters = (*query.filters, *aggregation.filters)
        bound_aggregation = replace(aggregation, filters=filters, search=query.search, limit=limit + 1)
        ctx.budget = Budget(self.limits.answer_size)
        rows = await analysis.aggregate(self._store, bound_aggregation, scope=query.forced, budget=ctx.budget)
        ctx.more = len(rows) > limit
        ctx._result = rows[:limit]
        if self._transforms:
            await self._change_values(ctx, ctx._result)

    async def _change_values(self, ctx: Context, rows: Sequence[dict[str, Any]]) -> None:
        """Show values of fields as records show them: those of groups, and the least and greatest."""
        aggregation = ctx.aggregation
        fields = {key.alias: key.field for key in aggregation.keys}
        fields |= {m.alias: m.field for m in aggregation.measures if m.fn in (Fn.MIN, Fn.MAX)}
        for alias, field in fields.items():
            for transform in self._transforms:
                if field is not None and transform.field is stored_field(field):
                    for row in rows:
                        row[alias] = await transform.change(ctx, row[alias])

    async def respond(self, ctx: Context) -> None:
        if ctx.response is None:
            if ctx._result is None:
                raise no_answer_error(ctx)
            aggregation = ctx.aggregation
            meta = None if aggregation is None else {"limit": aggregation.limit, "has_more": ctx.more}
            response = Response(200, ctx._result, meta=meta)
            if self._store.listings.own.locales is not None:
                mark_shown_language(ctx, response)
            if ctx.budget is not None:
                write = partial(response.encode, ctx.runtime.encode)
                response.body = await ctx.runtime.offload.run(ctx.budget.used, write)
                ctx.budget.check(len(response.body))
            ctx.response = response


def _line(parameters: Sequence[tuple[str, str]]) -> str:
    """The parameter that says what these were meant to: `select=status,sum(total)&limit=5`."""
    spec: dict[str, Any] = {"select": [], "group_by": []}
    for name, value in parameters:
        if name in ("select", "op", "aggregate"):
            words = [word.strip() for word in value.split(",")]
            entries = {word: entry_for(word) for word in words}
            spec["select"] += [entry for entry in entries.values() if entry is not None]
            spec["group_by"] += [word for word, entry in entries.items() if entry is None]
        elif name in tuple(Fn):
            spec["select"].append(entry_for(f"{name}:{value}"))
        elif name in ("group_by", "groupby", "group"):
            spec["group_by"] += value.split(",")
        elif name in ("sort", "order_by"):
            terms = (term.partition(":") for term in value.split(","))
            spec["order_by"] = [
                {"field": term, "direction": "desc" if way == "desc" else "asc"} for term, _, way in terms
            ]
        elif name == "limit" and value.isascii() and value.isdigit() and len(value) < 5:
            spec["limit"] = int(value)
    spec["select"] = [entry for entry in spec["select"] if entry is not None] or [{"op": "count"}]
    spec["group_by"] = list(dict.fromkeys(name for name in spec["group_by"] if ALIAS.fullmatch(name)))
    spec["order_by"] = [term for term in spec.get("order_by", ()) if ALIAS.fullmatch(term["field"])]
    line = f"aggregate={show_json({part: value for part, value in spec.items() if value})}"
    return line if len(line) <= _LONGEST_LINE else _EXAMPLE


async def _spec(ctx: Context, parameters: Sequence[tuple[str, str]]) -> Any:
    """The JSON of the request, from the one place that has it."""
    texts = [value for name, value in parameters if name == "aggregate"]
    if ctx.raw_body is None and _has_body(ctx):
        await read_body(ctx)
    body = ctx.raw_body
    if len(texts) + bool(body) != 1:
        raise InvalidQuery(
            f"aggregate: say once what to compute, in a JSON body or in the query string: {_EXAMPLE}"
        )
    if body:
        return await ctx.parse_body(_json.loads, exact=True)
    try:
        return _json.loads(texts[0].encode(), exact=True)
    except InvalidJson as error:
        problem = error.message.replace("the body", "the value")
        raise InvalidQuery(f"aggregate: {problem}; write {_line(parameters)}") from None


def _has_body(ctx: Context) -> bool:
    length = ctx.header("content-length")
    return ctx.header("transfer-encoding") is not None or length not in (None, "0")


_TEXT = {"type": "string"}
_OPERATOR = {"type": "string", "enum": [*OPERATORS, *ALIASES], "default": Op.EQ.value}


def schema(model: ModelMeta, limits: Limits) -> Mapping[str, Any]:
    """What `?aggregate=` takes, as JSON Schema; which aliases there are is not for a schema to say."""
    condition = {"operator": _OPERATOR, "value": {}}
    order = {"field": _TEXT, "direction": {"type": "string", "enum": ["asc", "desc"], "default": "asc"}}
    keys = _fields(model, KEYS)
    group_by = {"group_by": _list_of(keys, limits.group_keys, uniqueItems=True)} if keys["enum"] else {}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["select"],
        "properties": {
            "select": _list_of({"anyOf": list(_measures(model))}, limits.aggregates, minItems=1),
            **group_by,
            "where": _list_of(_entry({"field": _TEXT, **condition}, "field"), limits.filters),
            "having": _list_of(_entry({"alias": _TEXT, **condition}, "alias"), limits.filters),
            "order_by": _list_of(_entry(order, "field"), limits.sorts),
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_GROUPS, "default": DEFAULT_GROUPS},
        },
    }


def _measures(model: ModelMeta) -> Iterator[Mapping[str, Any]]:
    """The entries `select` takes: operations that work on the same fields are told together."""
    alias = {"type": "string", "pattern": f"^{ALIAS.pattern}$"}
    yield _entry({"op": {"type": "string", "enum": [Fn.COUNT.value]}, "as": alias}, "op")
    alike: dict[tuple[str, ...], list[str]] = {}
    for fn in Fn:
        alike.setdefault(tuple(_fields(model, FITTING[fn])["enum"]), []).append(fn.value)
    for names, ops in alike.items():
        fields = {"type": "string", "enum": list(names)}
        if names:
            yield _entry({"op": {"type": "string", "enum": ops}, "field": fields, "as": alias}, "op", "field")


def _fields(model: ModelMeta, kinds: frozenset[Kind]) -> Mapping[str, Any]:
    return {
        "type": "string",
        "enum": [
            f.api for f in model.fields if is_open(f) and query_kind(f) in kinds and "file" not in f.extra
        ],
    }


def _entry(properties: Mapping[str, Any], *required: str) -> Mapping[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def _list_of(items: Mapping[str, Any], most: int, **more: Any) -> Mapping[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, **more}


def _about(model: ModelMeta, limits: Limits) -> RouteDocs:
    parameter = {
        "name": "aggregate",
        "in": "query",
        "required": True,
        "description": "What to compute, and by which fields to group it.",
        "content": {"application/json": {"schema": schema(model, limits)}},
    }
    return RouteDocs(
        name=f"aggregate_{model.table}",
        summary=f"Counts, sums and the like over {model.table}",
        description=f"Computes over all {model.table} that the filters leave, in groups if asked for.",
        answer_texts={200: "One entry for each group, or one for all of them together."},
        grammar=("filter", "q"),
        parameters=(parameter,),
        data_schema={"type": "array", "items": {"type": "object"}},
        errors=(400,),
    )
