"""`versioned=True`: the routes of histories, and what their rows show.

All of them are READ_HISTORY of the parent: rules for READ cover them, those for LIST the flat list too, and
rules for the history model as well. Conditions that bind the parent bind them through the record, whether
it is there or marked as deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from maniflex._names import snake_case
from maniflex.db.budget import Budget
from maniflex.db.current import executor
from maniflex.db.past_rows import PastRows
from maniflex.db.port import Row
from maniflex.db.records import Bound, Records
from maniflex.errors import DeclarationError, Forbidden, InvalidQuery, NotFound
from maniflex.features.history_options import keeps_snapshots
from maniflex.model.base import Model
from maniflex.model.history_row import HistoryOperation, HistoryRow, history_model, is_versioned
from maniflex.model.meta import Kind, ModelMeta
from maniflex.model.texts import is_text
from maniflex.pipeline.body import Body
from maniflex.pipeline.chain import Default, Target
from maniflex.pipeline.context import Context
from maniflex.pipeline.model_routes import update_endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.rules.policies import RowJudge
from maniflex.pipeline.rules.transforms import change_records
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.scope import singleton_id
from maniflex.query.query import Query, Sort, leaves, through_record
from maniflex.sql import select
from maniflex.sql.history_layouts import typed_value

_MOST_DIGITS = 18  # of a version


def history_endpoints(routes: RouteBuilder, model: ModelMeta) -> Iterator[Endpoint]:
    """The routes of the history of one model."""
    own = None if model.options.headless else _history_routes(routes, model)
    if own is None:
        return
    yield from routes.with_options(own.record_endpoints())
    if model.options.history_list is not False:
        yield from routes.with_options(own.model_endpoints())


def private_history_endpoints(routes: RouteBuilder, model: ModelMeta) -> list[Endpoint]:
    """The same for requests of this process alone, whether or not the model has routes on a path."""
    own = _history_routes(routes, model)
    return [] if own is None else list(own.record_endpoints())


def _history_routes(routes: RouteBuilder, model: ModelMeta) -> _HistoryRoutes | None:
    history = routes.runtime.stores.get(history_model(model.cls)) if is_versioned(model.options) else None
    return None if history is None else _HistoryRoutes(routes, model, history.meta)


def past_rows(runtime: Runtime, meta: ModelMeta) -> PastRows:
    """What reads the past of a versioned model."""
    history = runtime.stores[history_model(meta.cls)]
    return PastRows(runtime.stores[meta.cls], history, snapshots=keeps_snapshots(meta.options))


class _HistoryRoutes:
    def __init__(self, routes: RouteBuilder, model: ModelMeta, history: ModelMeta) -> None:
        self._routes = routes
        self._model = model
        self._history = history
        self._steps = HistorySteps(routes.runtime, model, history)
        self._below = "" if model.options.singleton else "/{id}"

    def record_endpoints(self) -> Iterator[Endpoint]:
        """The history of one record, its versions, and the way back to one of them."""
        steps, path = self._steps, f"/{self._model.table}{self._below}/history"
        nested: dict[str, Default] = {"deserialize": steps.read_query, "db": steps.list_of_record}
        yield from self._reading(path, nested, steps.answer_list, history_docs(self._model, self._history))
        version: dict[str, Default] = {"deserialize": steps.read_selection, "db": steps.read_version}
        docs = version_docs(self._model, self._history)
        yield from self._reading(f"{path}/{{version}}", version, steps.answer_one, docs)
        if self._model.options.history_restore:
            yield self._restoring()

    def model_endpoints(self) -> Iterator[Endpoint]:
        """The histories of all records."""
        steps, path = self._steps, f"/{self._history.table}"
        many: dict[str, Default] = {"deserialize": steps.read_query, "db": steps.list_all}
        yield from self._reading(
            path, many, steps.answer_list, list_docs(self._model, self._history), item=False
        )
        one: dict[str, Default] = {"deserialize": steps.read_selection, "db": steps.read_one}
        docs = version_docs(self._model, self._history, flat=True)
        yield from self._reading(f"{path}/{{id}}", one, steps.answer_one, docs, item=False)

    def _reading(
        self,
        path: str,
        defaults: dict[str, Default],
        respond: Default,
        about: RouteDocs,
        *,
        item: bool = True,
    ) -> Iterator[Endpoint]:
        # HEAD is READ_HISTORY too, so that no rule is passed by asking for the headers only.
        for method, docs in (("GET", about), ("HEAD", about.of_head())):
            yield self._routes.endpoint(
                method,
                path,
                Operation.READ_HISTORY,
                model=self._model,
                defaults=defaults,
                outer=[("history", self._steps.begin)],
                also=self._also(),
                respond=respond,
                item=item,
                owner=self._history.name,
                about=docs,
            )

    def _restoring(self) -> Endpoint:
        """An UPDATE with the values of a version, for callers who may also read that version."""
        return update_endpoint(
            self._routes,
            self._model,
            "POST",
            below=f"{self._below}/history/{{version}}/restore",
            deserialize=self._steps.read_state,
            also=((self._model, Operation.READ_HISTORY), *self._also()),
            about=restore_docs(self._model),
        )

    def _also(self) -> tuple[Target, ...]:
        return ((self._history, Operation.READ_HISTORY),)


class HistorySteps:
    """The steps of the routes of one history."""

    def __init__(self, runtime: Runtime, model: ModelMeta, history: ModelMeta) -> None:
        self._model = model
        self._store = runtime.stores[model.cls]
        self._history = runtime.stores[history.cls]
        self._past = past_rows(runtime, model)
        self._newest_of_record = (Sort(history.by_name["version"], descending=True),)
        self._newest = (Sort(history.by_name["id"], descending=True),)  # ids rise with time
        self._shower = HistoryShower(runtime, model, history)
        self._most = (model.options.limits or runtime.config.limits).answer_size
        rules = runtime.rules[model.cls]
        self._of_one = rules.judge(Operation.READ_HISTORY, item=True)
        self._of_many = rules.judge(Operation.READ_HISTORY, item=False)

    async def begin(self, ctx: Context, next: Next) -> None:
        """Whatever binds or narrows the request is about the records; the query string is about versions."""
        ctx._query = self._store.query(b"")
        await next()

    def read_query(self, ctx: Context) -> None:
        query = self._history.query(ctx.scope["query_string"])
        if query.includes or query.cursor is not None or query.search is not None:
            raise InvalidQuery("a history takes page, limit, filter, sort and select")
        if any(item.path for item in leaves(query.filters)) or any(sort.path for sort in query.sorts):
            raise InvalidQuery("filter and sort: a history is asked for its own fields")
        ctx.past = query

    def read_selection(self, ctx: Context) -> None:
        self.read_query(ctx)
        query: Query = ctx.past
        if query.filters or query.sorts or query.page != 1:
            raise InvalidQuery("one version takes select alone")

    async def list_of_record(self, ctx: Context) -> None:
        """The versions of a record that the request may read."""
        query = self._read_query(ctx)
        if not await self._find_record(ctx):
            ctx.past = HistoryPage(query, (), 0, counted=not self._of_one)
            return
        query = query.with_filter("record_id", ctx.resource_id)
        await self._list(ctx, query.with_(sorts=query.sorts or self._newest_of_record))
        page: HistoryPage = ctx.past
        rows = await self._allowed_versions(ctx, page.rows, self._of_one)
        # Versions are judged one by one, whatever `where` says of lists of records.
        ctx.past = page._replace(rows=rows, counted=not self._of_one)

    async def list_all(self, ctx: Context) -> None:
        query = self._read_query(ctx)
        await self._list(ctx, query.with_(sorts=query.sorts or self._newest))
        page: HistoryPage = ctx.past
        rows = await self._allowed_versions(ctx, page.rows, self._of_many)
        ctx.past = page._replace(rows=rows, counted=not self._of_many.hides_rows)

    async def read_version(self, ctx: Context) -> None:
        query = self._read_query(ctx)
        version = _version(ctx)
        if version is None or not await self._find_record(ctx):
            raise NotFound(model=self._history.meta.name, record_id=ctx.resource_id)
        query = query.with_filter("record_id", ctx.resource_id).with_filter("version", version)
        await self._one(ctx, query)
        await self._require_allowed(ctx, self._of_one)

    async def read_one(self, ctx: Context) -> None:
        await self._one(ctx, self._read_query(ctx).with_filter("id", ctx.resource_id))
        await self._of_many.require_kept(ctx, self._record_id(ctx.past.rows[0]))
        await self._require_allowed(ctx, self._of_many)

    async def read_state(self, ctx: Context) -> None:
        """Take the values of a version for the body of an update."""
        version = _version(ctx)
        if self._model.options.singleton:
            ctx.resource_id = singleton_id(self._model, ctx.forced)
        row = await self._store.read(ctx.resource_id, scope=ctx.forced)  # 404, whatever its versions are
        await self._of_one.require_row(ctx, row)
        values = None
        if version is not None and await self._is_shown(ctx, version):
            values = await self._past.state(ctx.resource_id, version, without_erased=True)
        if values is None:
            raise NotFound(model=self._history.meta.name, record_id=ctx.resource_id)
        closed = self._model.closed
        ctx._body = Body(
            {
                f.api: values[f.api]
                for f in self._model.fields
                if f.api in values and not (f.secret or f.immutable or f.name in closed)
            }
        )
        ctx.change_reason = ctx.change_reason or f"version {version} restored"

    async def answer_list(self, ctx: Context) -> None:
        if ctx.response is not None:
            return
        page = _page_of(ctx)
        query = page.query
        meta = page_meta(total=page.total, page=query.page, limit=query.limit or 1, counted=page.counted)
        ctx.response = Response(200, await self._shower.show(ctx, page), meta=meta)

    async def answer_one(self, ctx: Context) -> None:
        if ctx.response is None:
            [data] = await self._shower.show(ctx, _page_of(ctx))
            ctx.response = Response(200, data)

    def _read_query(self, ctx: Context) -> Query:
        if not isinstance(ctx.past, Query):  # middleware replaced the deserialize step
            self.read_query(ctx)
        query: Query = ctx.past
        return query

    async def _find_record(self, ctx: Context) -> bool:
        """Whether the record is there, or marked as deleted; its own 404 unless it is a singleton."""
        query = ctx.current_query()
        if self._model.options.singleton:
            ctx.resource_id = singleton_id(self._model, query.forced)
        statement = select.kept_one(self._store.sql, ctx.resource_id, query.filters, query.forced)
        row = await executor(self._store.adapter).fetch_one(statement)
        if row is None and not self._model.options.singleton:
            raise NotFound(model=self._model.name, record_id=ctx.resource_id)
        if row is not None:  # middleware that judges records finds it where a read leaves it
            ctx.row = row if self._store.decode is None else self._store.decode(row)
            await self._of_one.require_row(ctx, ctx.row)
        return row is not None

    async def _is_shown(self, ctx: Context, version: int) -> bool:
        """Whether the request may read that version of its record."""
        scope = through_record(self._history.meta, ctx.current_query())
        query = Query(self._history.meta, self._history.models, forced=scope)
        query = query.with_filter("record_id", ctx.resource_id).with_filter("version", version)
        rows, _ = await self._history.page(self._history.listing(query))
        return bool(await self._allowed_versions(ctx, rows, self._of_one))

    async def _allowed_versions(self, ctx: Context, rows: Sequence[Row], judge: RowJudge) -> Sequence[Row]:
        """Those of the versions whose records the caller may read as they are and as they were."""
        if not judge:
            return rows
        now = await judge.allowed_kept(ctx, [self._record_id(row) for row in rows])
        versions = []
        for row in rows:
            record_id = self._record_id(row)
            if record_id in now:
                version: Any = self._history.record(row)
                state = await self._past.state(record_id, version.version) or {}
                is_update = version.operation == HistoryOperation.UPDATE
                diff = self._past.tell_diff(version.schema_version, version.diff) if is_update else None
                states = [state]
                if diff is not None:  # the record before the changes of an update
                    states.append({**state, **{name: side["old"] for name, side in diff.values.items()}})
                if await judge.allows_states(ctx, states, now[record_id]):
                    versions.append(row)
        return versions

    async def _require_allowed(self, ctx: Context, judge: RowJudge) -> None:
        if not await self._allowed_versions(ctx, ctx.past.rows, judge):
            raise Forbidden()

    def _record_id(self, row: Row) -> str:
        return str(row[self._history.sql.names.index("record_id")])

    async def _one(self, ctx: Context, query: Query) -> None:
        await self._list(ctx, query.with_(limit=1))
        if not ctx.past.rows:
            raise NotFound(model=self._history.meta.name, record_id=ctx.resource_id)

    async def _list(self, ctx: Context, query: Query) -> None:
        scope = through_record(self._history.meta, ctx.current_query())
        listing = self._history.listing(query.with_(forced=scope, select=None))
        rows, total = await self._history.page(listing, budget=Budget(self._most))
        ctx.past = HistoryPage(query, rows, total)


class HistoryPage(NamedTuple):
    """Rows of a history that were asked for."""

    query: Query
    rows: Sequence[Row]
    total: int
    counted: bool = True


class HistoryShower:
    """Rows of a history as answers show them, by the names and in the types that fields have now."""

    def __init__(self, runtime: Runtime, model: ModelMeta, history: ModelMeta) -> None:
        self._model = model
        self._serializer = runtime.serializers[history.cls]
        self._past = past_rows(runtime, model)
        self._layout_place = runtime.stores[history.cls].sql.names.index("schema_version")
        self._snapshots = keeps_snapshots(model.options)
        self._rules = runtime.rules[model.cls]
        self._transforms = self._rules.changes(Operation.READ_HISTORY)

    async def show(self, ctx: Context, page: HistoryPage) -> list[dict[str, Any]]:
        hidden = await self._rules.unshown_fields(ctx)
        selected_names = None if page.query.select is None else {f.api for f in page.query.select}
        await self._past.learn_layouts(row[self._layout_place] for row in page.rows)
        answers = []
        for row in page.rows:
            values = self._serializer.fields(row)
            layout, former = row[self._layout_place], {}
            for name in ("diff", "snapshot") if self._snapshots else ("diff",):
                values[name], rest = await self._show_values(ctx, name, values[name], layout, hidden)
                if rest and (selected_names is None or name in selected_names):
                    former[name] = rest
            if not self._snapshots:
                del values["snapshot"]
            answer = {n: v for n, v in values.items() if selected_names is None or n in selected_names}
            answers.append(answer | ({"former": former} if former else {}))
        return answers

    async def _show_values(
        self, ctx: Context, name: str, stored: Any, layout: int | None, hidden: frozenset[str]
    ) -> tuple[Any, dict[str, Any]]:
        """A diff or a snapshot as the model has its fields now, and what belongs to none of them."""
        content = None if stored is None else msgspec.json.decode(stored)
        if content is None:
            return (None if name == "snapshot" else {}), {}
        tell = self._past.tell if name == "snapshot" else self._past.tell_diff
        values, former = tell(layout, content)
        values = {name: value for name, value in values.items() if name not in hidden}
        if name == "snapshot":
            await self._transform(ctx, values)
        else:
            await self._transform_diff(ctx, values)
        return values, self._shown_former(layout, former, hidden)

    def _shown_former(
        self, layout: int | None, former: dict[str, Any], hidden: frozenset[str]
    ) -> dict[str, Any]:
        """Values of fields that the model has no longer, or has in another type.

        None of them while a field that the caller must not see is not known by its name of then: any of
        them may be that field.
        """
        if not former:
            return {}
        then = self._past.layouts.names_then(layout)
        known_names = {f.api for f, _ in then.values()} | self._past.secrets_then(layout)
        unseen = {f.api for f in self._model.fields if f.secret or f.api in hidden}
        if unseen and (layout is None or not unseen <= known_names):
            return {}
        names = {name for name, (field, _) in then.items() if field.api in hidden or field.secret}
        return {name: value for name, value in former.items() if name not in names | hidden}

    async def _transform_diff(self, ctx: Context, diff: dict[str, Any]) -> None:
        for side in ("old", "new") if self._transforms else ():
            values = {name: change[side] for name, change in diff.items() if change[side] is not None}
            await self._transform(ctx, values)
            for name, value in values.items():
                diff[name][side] = value

    async def _transform(self, ctx: Context, values: dict[str, Any]) -> None:
        """Change values as other answers show them; the functions get them as they are stored."""
        for transform in self._transforms:
            name = transform.field.api
            if name in values and not (is_text(transform.field) and isinstance(values[name], dict | str)):
                try:
                    values[name] = typed_value(transform.field, values[name])
                except ValueError:
                    del values[name]  # its function knows nothing of the type it had then
        await change_records(ctx, self._transforms, [values])


def _version(ctx: Context) -> int | None:
    text = ctx.params.get("version", ctx.resource_id)  # the only parameter of a singleton's path
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _page_of(ctx: Context) -> HistoryPage:
    if not isinstance(ctx.past, HistoryPage):
        raise no_answer_error(ctx)
    return ctx.past


# What the API description says of the routes of histories, and of reads of the past.


_FAILURES = (500, 503, 504)
_PAGE_META = {"$ref": "#/components/schemas/PageMeta"}


def history_docs(model: ModelMeta, history: ModelMeta) -> RouteDocs:
    """Of the history of one record."""
    name = snake_case(model.name)
    return RouteDocs(
        name=f"list_{name}_history",
        summary=f"The history of a {model.name}",
        description="Every version of the record, newest first; also of one that is marked as deleted.",
        parameters=_list_parameters(),
        answers={200: _describe_page(history)},
        answer_texts={200: "A page of versions."},
        errors=(400, 404, 414, *_FAILURES),
        codes=("INVALID_QUERY",),
    )


def list_docs(model: ModelMeta, history: ModelMeta) -> RouteDocs:
    """Of the histories of all records."""
    return RouteDocs(
        name=f"list_{history.table}",
        summary=f"The histories of all {model.table}",
        description="Versions of all records that the caller may read, newest first.",
        parameters=_list_parameters(),
        answers={200: _describe_page(history)},
        answer_texts={200: "A page of versions."},
        errors=(400, 414, *_FAILURES),
        codes=("INVALID_QUERY",),
    )


def version_docs(model: ModelMeta, history: ModelMeta, *, flat: bool = False) -> RouteDocs:
    """Of one version."""
    name = snake_case(history.name) if flat else f"{snake_case(model.name)}_version"
    data = {"type": "object", "required": ["data"], "properties": {"data": _schema(history)}}
    return RouteDocs(
        name=f"get_{name}",
        summary=f"One version of a {model.name}",
        description="What changed, who changed it, and the record as it was then, by the names and in the"
        " types that its fields have now. `former` has what belongs to no field of now.",
        parameters=[_SELECT],
        answers={200: data},
        answer_texts={200: "The version."},
        errors=(400, 404, 414, *_FAILURES),
        codes=("INVALID_QUERY",),
    )


def restore_docs(model: ModelMeta) -> RouteDocs:
    """Of the way back to a version."""
    return RouteDocs(
        name=f"restore_{snake_case(model.name)}_version",
        summary=f"Give a {model.name} the values of an earlier version",
        description="Updates the record with the values of that version that a client may set.",
        answer_texts={200: "The record, as it is now."},
        response=model.cls,
        errors=(404, 409, 412, 422) if model.options.optimistic_lock else (404, 409, 422),
    )


def _schema(history: ModelMeta) -> Mapping[str, Any]:
    return {"$ref": f"#/components/schemas/{history.name}"}


def _describe_page(history: ModelMeta) -> Mapping[str, Any]:
    data = {"type": "array", "items": _schema(history)}
    return {
        "type": "object",
        "required": ["data", "meta"],
        "properties": {"data": data, "meta": _PAGE_META},
    }


def _query(name: str, text: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": schema}


_SELECT = _query("select", "Only these fields of a version, divided by commas.", {"type": "string"})


def _list_parameters() -> Sequence[Mapping[str, Any]]:
    fields = "`record_id`, `operation`, `actor_id`, `request_id`, `source`, `version` and `timestamp`"
    operations = ", ".join(f"`{operation}`" for operation in HistoryOperation)
    number = {"type": "integer", "minimum": 1}
    return (
        _query("page", "Which page, counted from 1.", {**number, "default": 1}),
        _query("limit", "How many versions a page has.", {**number, "default": 20}),
        _query(
            "filter",
            f"Only versions for which `field:operator:value` holds, by {fields}; operations are {operations}",
            {"type": "array", "items": {"type": "string"}},
        ),
        _query("sort", "`version` or `timestamp`, with `:desc` to turn the order round.", {"type": "string"}),
        _SELECT,
    )


def page_meta(*, total: int, page: int, limit: int, counted: bool) -> dict[str, object]:
    """Where in a list a page is; a count would tell of records that only a policy hides."""
    if not counted:
        return {"page": page, "limit": limit, "has_more": page * limit < total}
    return {"total": total, "page": page, "limit": limit, "pages": -(-total // limit)}


# `server.history(Invoice)`: the history of a model for code, bound where `server.db` is.


M = TypeVar("M", bound=Model)


class ModelHistory(Generic[M]):
    """What happened to the records of one versioned model."""

    def __init__(self, runtime: Runtime, model: type[M] | str, bound: Bound | None = None) -> None:
        self._store = runtime.store(model)
        self._bound = bound
        meta = self._store.meta
        if not is_versioned(meta.options):
            raise DeclarationError(f"{meta.name} keeps no history; declare it with versioned=True")
        self._past = past_rows(runtime, meta)
        self._rows: Records[HistoryRow] = Records(runtime.stores[history_model(meta.cls)], bound=bound)

    async def of(self, id: str, *, limit: int | None = None) -> list[HistoryRow]:
        """The versions of a record, newest first; also of one that is gone."""
        return await self._rows.list({"record_id": id}, "version:desc", limit=limit)

    async def version(self, id: str, number: int) -> HistoryRow:
        """One version of a record; `NotFound` when there is none."""
        rows = await self._rows.list({"record_id": id, "version": number}, limit=1)
        if not rows:
            raise NotFound(model=self._rows_name, record_id=id)
        return rows[0]

    async def at(self, id: str, moment: datetime) -> M:
        """The record as it was, without what its history does not keep; `NotFound` when it was not there."""
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        scope = (
            () if self._bound is None else await self._bound.scope_of(self._store.meta, Operation.READ.value)
        )
        record = await self._past.at(id, moment, scope=scope)
        fields = [f for f in self._store.meta.fields if f.name not in record.missing]
        values = [v for f, v in zip(self._store.meta.fields, record.row, strict=True) if f in fields]
        return cast(M, self._store.record(values, fields))

    async def revert(self, id: str, number: int) -> M:
        """Give a record the values of one of its versions, as an update that is a version of its own."""
        await self.version(id, number)
        state = await self._past.state(id, number)
        marker = self._store.meta.soft_delete
        fixed_names = {"id", "created_at", "updated_at", marker.field if marker else "id"}
        values: dict[str, Any] = {
            f.name: state[f.api] if f.kind is Kind.JSON else typed_value(f, state[f.api])
            for f in self._store.meta.fields
            if state is not None and f.api in state and not f.secret and f.name not in fixed_names
        }
        records: Records[M] = Records(self._store, bound=self._bound)
        return await records.update(id, values)

    @property
    def _rows_name(self) -> str:
        return f"{self._store.meta.name}History"
