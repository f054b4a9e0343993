"""`export=True`: GET `/{table}/export`, the rows of a list as one CSV, XLSX or JSONL file.

An export is the list without pages: same filters, sorts, search and scopes, and every rule for
LIST covers it. An export with too many rows is refused before the first byte; one that fails later is
broken off, never ended as if it were whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from enum import Enum, StrEnum
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import Field

from maniflex.db.store import Store
from maniflex.errors import ExportTooLarge, InvalidFormat, InvalidQuery
from maniflex.features.export_places import Places
from maniflex.features.json_lines import write_jsonl
from maniflex.features.tabular import MOST_XLSX_ROWS, Batches, write_csv, write_xlsx
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.policy_table import RowPolicies
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.routes import RouteBuilder
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.serializer import Serializer
from maniflex.pipeline.transforms import change_rows
from maniflex.query.parse import pairs
from maniflex.sql.statement import Dialect, by_dialect

MAX_EXPORT_ROWS = 100_000
WHOLE_EXPORT = "maniflex.whole_export"  # in the scope of a request of the panel: its file has no limit
_MOST_ROWS = 2**31 - 2  # what a LIMIT of either database takes, and one more


class Format(StrEnum):
    """What an export can be written as."""

    CSV = "csv"
    XLSX = "xlsx"
    JSONL = "jsonl"

    @property
    def content_type(self) -> str:
        return _CONTENT_TYPES[self]


_CONTENT_TYPES = {
    Format.CSV: "text/csv; charset=utf-8",
    Format.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    Format.JSONL: "application/jsonl; charset=utf-8",
}


def export_problems(model: ModelMeta) -> Iterator[str]:
    """The problems of a model's `export=`."""
    if not model.options.export or model.options.headless:
        return
    if model.options.singleton:
        yield f"{model.name}: export= is for lists; a singleton has none"


def available_formats() -> tuple[Format, ...]:
    """What exports can be written as here: a sheet needs a package of its own."""
    return tuple(one for one in Format if one is not Format.XLSX or find_spec("xlsxwriter") is not None)


def export_endpoints(routes: RouteBuilder, models: Iterable[ModelMeta]) -> Iterator[Endpoint]:
    """The export routes of all models; they share the places there are."""
    runtime = routes.runtime
    exportable = [m for m in models if m.options.export and not m.options.headless]
    if any(_takes_a_connection(runtime.stores[m.cls].adapter.dialect) for m in exportable):
        _warn_of_small_pool(runtime)
    if exportable and Format.XLSX not in available_formats():
        runtime.logger.info('exports are csv and jsonl only; for xlsx: pip install "maniflex[export]"')
    places = Places(runtime.config.max_exports)
    for model in exportable:
        yield from routes.with_options(Export(runtime, model, places).endpoints(routes))


def private_export_endpoints(routes: RouteBuilder, model: ModelMeta) -> list[Endpoint]:
    """The export of one model for requests of this process alone; it has places of its own."""
    runtime = routes.runtime
    if not model.options.export or model.options.singleton:
        return []
    return list(Export(runtime, model, Places(runtime.config.max_exports)).endpoints(routes))


def _takes_a_connection(dialect: Dialect) -> bool:
    """Whether an export has a connection of the pool to itself for as long as it lasts."""
    return by_dialect(dialect, sqlite=False, postgres=True)


def _warn_of_small_pool(runtime: Runtime) -> None:
    config = runtime.config
    size = config.read_pool_size if config.read_database else config.pool_size
    if config.max_exports >= size:
        runtime.logger.warning("max_exports=%d exports can take all %d connections", config.max_exports, size)


class Export:
    """The export of one model."""

    def __init__(self, runtime: Runtime, model: ModelMeta, places: Places) -> None:
        self._model = model
        self._store: Store = runtime.stores[model.cls]
        self._serializer: Serializer = runtime.serializers[model.cls]
        self._clock = runtime.clock
        transforms = runtime.transforms.get(model.cls, ())
        self._transforms = [t for t in transforms if t.covers(Operation.EXPORT)]
        policies = runtime.policies.get(model.name)
        self._policies = None if policies is None else policies.of(Operation.EXPORT, item=False)
        self._tells_count = self._policies is None or not self._policies.hides_rows
        self._places = places
        self._formats = available_formats()

    def endpoints(self, routes: RouteBuilder) -> Iterator[Endpoint]:
        steps: dict[str, Default] = {"deserialize": self.deserialize, "db": self.read}
        # HEAD is an export too, so that no rule for exports is passed by asking for the headers only.
        for method in ("GET", "HEAD"):
            yield routes.endpoint(
                method,
                f"/{self._model.table}/export",
                Operation.EXPORT,
                model=self._model,
                defaults=steps,
                respond=self.respond,
                owner=f"the export of {self._model.name}",
                about=_about(self._formats),
            )

    # -- steps -------------------------------------------------------------------------------

    def deserialize(self, ctx: Context) -> None:
        self._format(ctx)
        self._store.listings.refuse_misplaced(ctx.scope["query_string"], taken="format")
        query = ctx.current_query()
        if query.includes:
            raise InvalidQuery("include: an export has no related records")
        if query.cursor is not None:
            raise InvalidQuery("cursor: an export has no pages")
        for field in query.select or ():
            if not field.exported:
                raise InvalidQuery(f"select: {field.api!r} is not a field of the export")

    async def read(self, ctx: Context) -> None:
        """Refuse an export with too many rows; the rows are read when they are sent."""
        query, most = ctx.current_query(), self._most(ctx, self._format(ctx))
        count = await self._store.count(query.filters, scope=query.forced, search=query.search)
        if count > most:
            found = f"{count} rows match" if self._tells_count else "too many rows match"
            raise ExportTooLarge(f"{found} and an export has at most {most}; narrow the filters")
        await self._places.wait_for_one()
        ctx.exports, ctx.total = True, count

    async def respond(self, ctx: Context) -> None:
        if ctx.response is not None:
            return
        if not ctx.exports and ctx._result is None:
            raise no_answer_error(ctx)
        format, now = self._format(ctx), self._clock.now()
        hidden = await ctx.redacted(self._model.cls) if self._model.cls in ctx.runtime.redactions else ()
        name = f"{self._model.table}-{now:%Y%m%dT%H%M%SZ}.{format}"
        ctx.response = Response(
            200,
            content_type=format.content_type,
            headers={"content-disposition": f'attachment; filename="{name}"'},
            stream=self._file(ctx, format, hidden),
        )

    # -- the file, while it is sent ----------------------------------------------------------

    async def _file(
        self, ctx: Context, format: Format, hidden: Collection[str]
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._places.send(self._make(ctx, format, hidden))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _make(self, ctx: Context, format: Format, hidden: Collection[str]) -> AsyncGenerator[bytes, None]:
        fields = tuple(f for f in self._columns(ctx) if f.api not in hidden)
        policies = self._policies if ctx._result is None and ctx.exports else None
        read_fields = fields if policies is None else self._model.fields
        rows = self._limit_rows(self._rows(ctx, read_fields, format), self._most(ctx, format))
        if policies is not None:
            rows = self._drop_denied(ctx, policies, fields, rows)
        if self._transforms:
            rows = change_rows(ctx, self._transforms, fields, rows)
        if ctx.exported_rows is not None:
            rows = self._count_rows(ctx, rows)
        if format is Format.CSV:
            return write_csv(fields, rows)
        if format is Format.JSONL:
            return write_jsonl(self._serializer.of(fields, fields), rows, ctx.runtime.encode)
        return write_xlsx(fields, rows, self._clock.now())

    def _columns(self, ctx: Context) -> tuple[FieldMeta, ...]:
        """The selected columns that middleware left in `ctx.export_columns`."""
        fields = ctx.current_query().select or self._model.fields
        open_ = {f.api: f for f in fields if f.exported}
        return tuple(open_[name] for name in dict.fromkeys(ctx.export_columns) if name in open_)

    def _rows(self, ctx: Context, fields: tuple[FieldMeta, ...], format: Format) -> Batches:
        if ctx._result is not None:
            return self._batch_of_records(ctx._result, fields)
        if ctx.exports:
            return self._store.stream(ctx.current_query(), fields, self._most(ctx, format) + 1)
        return self._batch_of_records((), fields)  # middleware replaced the database step and found nothing

    async def _batch_of_records(self, result: Any, fields: Sequence[FieldMeta]) -> Batches:
        """The records a middleware has put in place of the rows."""
        places = [self._model.fields.index(f) for f in fields]
        records = result.items if isinstance(result, Page) else result
        rows = [self._serializer.row(record) for record in records if self._serializer.fits(record)]
        yield [[_plain(row[i]) for i in places] for row in rows]

    async def _limit_rows(self, batches: Batches, most: int) -> Batches:
        """Rows that were added since they were counted do not make the file larger than allowed."""
        count = 0
        async with aclosing(batches):
            async for rows in batches:
                count += len(rows)
                if count > most:
                    raise ExportTooLarge(f"an export has at most {most} rows; narrow the filters")
                yield rows

    async def _count_rows(self, ctx: Context, batches: Batches) -> Batches:
        async with aclosing(batches):
            async for rows in batches:
                ctx.exported_rows = (ctx.exported_rows or 0) + len(rows)
                yield rows

    async def _drop_denied(
        self, ctx: Context, policies: RowPolicies, fields: Sequence[FieldMeta], batches: Batches
    ) -> Batches:
        """These fields of the rows that the caller may see; they come with all fields."""
        places = [self._model.fields.index(f) for f in fields]
        record = self._store.record
        async with aclosing(batches):
            async for rows in batches:
                allowed_rows = [row for row in rows if await policies.allow(ctx, record(row))]
                yield [[row[i] for i in places] for row in allowed_rows]

    def _most(self, ctx: Context, format: Format) -> int:
        most = min(self._model.options.max_export_rows or MAX_EXPORT_ROWS, _MOST_ROWS)
        if ctx.scope.get(WHOLE_EXPORT) is True:
            most = _MOST_ROWS
        return min(most, MOST_XLSX_ROWS) if format is Format.XLSX else most

    def _format(self, ctx: Context) -> Format:
        parameters = pairs(ctx.scope["query_string"]) if ctx.scope["query_string"] else ()
        format_name = next((value for name, value in parameters if name == "format"), Format.CSV)
        if format_name not in self._formats:
            raise InvalidFormat(f"an export is written as {' or '.join(self._formats)}")
        return Format(format_name)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _about(formats: Sequence[Format]) -> RouteDocs:
    return RouteDocs(
        codes=("EXPORT_BUSY", "EXPORT_TOO_LARGE", "INVALID_FORMAT"),
        summary="Download the rows of a list as a file",
        description="Writes all rows that the filters leave into one file; there are no pages.",
        answer_texts={200: "The file."},
        query={"format": Annotated[Literal[tuple(formats)], Field(description="The format of the file.")]},
        grammar=("filter", "sort", "select", "q"),
        media=tuple(format.content_type.partition(";")[0] for format in formats),
        errors=(413, 503),
    )
