"""The search endpoint over all models that opted in, and what can be wrong with searchable models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex._names import did_you_mean
from maniflex.errors import Forbidden, InvalidQuery, OutOfScope, RequestError
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.rules.policies import RowJudge
from maniflex.pipeline.rules.reach import Guard, Refused, admit
from maniflex.pipeline.search import DEFAULT_HITS, SearchHit, global_models
from maniflex.query.parse import pairs
from maniflex.query.query import Query
from maniflex.sql.search import VECTOR, index_table, numbers_table, searchable_fields

_MOST = 1_000_000_000  # what a limit may say; it gives `max_limit` at the most
# What `\S` of the description does not match: white space as JavaScript knows it, not as Python does.
_BLANK = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(8192, 8203)))
_PATH = re.compile(r"(/[^{}/?#\s]+)+")


@dataclass(frozen=True, slots=True)
class GlobalSearch:
    """Where the endpoint is mounted and how much it answers."""

    path: str = "/search"
    default_limit: int = DEFAULT_HITS
    max_limit: int = 100

    def problems(self) -> Iterator[str]:
        if not _PATH.fullmatch(self.path):
            yield f"enable_global_search: {self.path!r} is not a path like /search"
        if not 1 <= self.default_limit <= self.max_limit:
            yield "enable_global_search: default_limit must be from 1 to max_limit"


def search_problems(models: Sequence[ModelMeta]) -> Iterator[str]:
    """Searchable models that cannot be searched."""
    tables = {meta.table: meta.name for meta in models}
    for meta in models:
        if not searchable_fields(meta):
            if meta.options.global_searchable:
                yield f"{meta.name}: global_searchable needs a field with searchable=True"
            if meta.options.search_language:
                yield f"{meta.name}: search_language needs a field with searchable=True"
            continue
        for field in meta.fields:
            if field.column == VECTOR:
                yield f"{meta.name}.{field.name}: the column {VECTOR!r} is the one searching uses"
        for name in (index_table(meta), numbers_table(meta)):
            if name in tables:
                yield f"{tables[name]}: the table {name!r} is the one searching {meta.name} uses"


def search_endpoints(
    routes: RouteBuilder, search: GlobalSearch, models: Sequence[ModelMeta]
) -> Iterator[Endpoint]:
    """The routes on the configured path, behind the auth step and in front of the response step."""
    searchable = [m for m in models if m.options.global_searchable]
    guards = routes.reached.guards_of_reachable(None, Operation.SEARCH, item=False)
    judges = {meta: routes.runtime.rules[meta.cls].judge_of_included for meta in searchable}
    for model in searchable:
        if judges[model].hides_rows:
            guards[model] = _refuse_behind(guards.get(model))

    async def find(ctx: Context) -> None:
        text, names, limit = _read_request(ctx, search)
        if guards:
            names = await _admit_models(ctx, names, guards)
        hits = await ctx.search(text, models=names, limit=limit)
        ctx.result = await _drop_denied(ctx, judges, hits)

    def respond(ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(200, ctx.result)

    about = _about(search, [m.name for m in searchable])
    methods = RouteDocs(name="options_search", summary=f"Methods of {search.path}", tags=about.tags)
    yield from routes.with_options(
        (
            routes.endpoint(
                method,
                search.path,
                Operation.SEARCH,  # HEAD too: no rule for searches is passed by asking for headers only
                steps=(*TRIMMED, "search"),
                defaults={"search": find},
                respond=respond,
                owner="global search",
                about=docs,
            )
            for method, docs in (("GET", about), ("HEAD", about.of_head()))
        ),
        about=methods,
    )


def _about(search: GlobalSearch, names: Sequence[str]) -> RouteDocs:
    return RouteDocs(
        name="search",
        summary="Search several models at once",
        description="All words must occur; the best matches come first.",
        tags=("Search",),
        response=list[SearchHit],
        answer_texts={200: "The hits, the best first."},
        parameters=(
            _parameter("q", "What to search for.", {"type": "string", "pattern": r"\S"}, required=True),
            {
                **_parameter("models", "Names of models; else all.", _some_of(names)),
                "style": "form",
                "explode": False,
            },
            _parameter(
                "limit",
                f"How many hits; more than {search.max_limit} gives {search.max_limit}.",
                {"type": "integer", "minimum": 1, "maximum": _MOST, "default": search.default_limit},
            ),
        ),
        errors=(400,),
    )


def _some_of(names: Sequence[str]) -> dict[str, Any]:
    item = {"type": "string", "enum": list(names)} if names else {"type": "string"}
    return {"type": "array", "items": item, "minItems": 1}


def _parameter(name: str, text: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "required": required, "schema": schema}


def _read_request(ctx: Context, search: GlobalSearch) -> tuple[str, list[str] | None, int]:
    query_string = ctx.scope["query_string"]
    parameters = dict(pairs(query_string)) if query_string else {}
    text = parameters.get("q", "").strip(_BLANK)
    if not text:
        raise InvalidQuery("q: say what to search for")
    limit = search.default_limit
    if "limit" in parameters:
        limit = min(_number(parameters["limit"]), search.max_limit)
    models = parameters.get("models")
    return text, None if models is None else _names(ctx, models), limit


def _names(ctx: Context, text: str) -> list[str]:
    searchable = [store.meta.name for store in global_models(ctx.runtime, ctx.forced)]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in searchable:
            raise InvalidQuery(f"models: {name!r} cannot be searched here{did_you_mean(name, searchable)}")
    return names


async def _admit_models(
    ctx: Context, names: Sequence[str] | None, guards: Mapping[ModelMeta, Guard]
) -> list[str]:
    """The models whose own middleware lets the request pass.

    A model the client names refuses the request; one that it does not name is left out, unless no
    other is left. A caller whose rows no scope rule can tell is refused whatever else there is.
    """
    stores = global_models(ctx.runtime, ctx.forced)
    metas = [s.meta for s in stores if names is None or s.meta.name in names]
    admitted_names: list[str] = []
    refusals: list[Exception] = []
    for meta in metas:
        try:
            if meta in guards:
                await admit(ctx, meta, guards[meta])
        except (RequestError, Refused) as refusal:
            is_broken = isinstance(refusal, RequestError) and refusal.status >= 500
            if names is not None or is_broken or isinstance(refusal, OutOfScope):
                raise
            refusals.append(refusal)
        else:
            admitted_names.append(meta.name)
    if refusals and not admitted_names:
        raise refusals[0]
    return admitted_names


def _refuse_behind(guard: Guard | None) -> Guard:
    """The guard of a model whose rows only a policy hides: where they are found would tell of them."""

    async def refuse(view: Context) -> None:
        if guard is not None:
            await guard(view)
        raise Forbidden()

    return refuse


async def _drop_denied(
    ctx: Context, judges: Mapping[ModelMeta, RowJudge], hits: Sequence[SearchHit]
) -> list[SearchHit]:
    """The hits that the caller may see; their rows are read to be judged."""
    denied_hits: set[tuple[str, str]] = set()
    for meta, judge in judges.items():
        ids = [hit.id for hit in hits if hit.model == meta.name] if judge else ()
        if not ids:
            continue
        store = ctx.runtime.stores[meta.cls]
        query = Query(store.meta, store.models, limit=None).with_filter("id", ids, "in")
        rows, _ = await store.page(store.listing(query), counted=False)
        records = [store.record(row) for row in rows]
        allowed_ids = {record.id for record in records if await judge.allow(ctx, record)}
        denied_hits |= {(meta.name, id) for id in ids if id not in allowed_ids}
    return [hit for hit in hits if (hit.model, hit.id) not in denied_hits]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= _MOST:
        raise InvalidQuery(f"limit: a whole number from 1 to {_MOST}")
    return int(text)
