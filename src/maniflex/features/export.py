"""`export=True`: GET `/{table}/export`, the rows of a list as one CSV, XLSX or JSONL file.

An export is the list without pages: same filters, sorts, search and scopes, and every rule for
LIST covers it. An export with too many rows is refused before the first byte; one that fails later is
broken off, never ended as if it were whole.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
import os
import re
import tempfile
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, StrEnum
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import IO, Annotated, Any, Literal, TypeVar

from pydantic import Field

from maniflex._locales import NO_LOCALE, LocaleView
from maniflex._tables import PartialTable
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import ExportBusy, ExportTooLarge, InvalidFormat, InvalidQuery
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.texts import TEXT, TextOf, locale_rules, localized_fields, stored_field, text_field
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.languages import mark_shown_language
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.rules.transforms import change_rows
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.serializer import Serializer
from maniflex.query.parse import pairs
from maniflex.sql.statement import Dialect, by_dialect

# Rows → a file people open in a spreadsheet: the only home of how values look in CSV and XLSX.
#
# Text is never a formula: in CSV a cell that would start one gets an apostrophe in front, in XLSX every
# text is a text cell. Numbers stay numbers, but not where a spreadsheet would drop digits.


T = TypeVar("T")
Batches = AsyncGenerator[Sequence[Row], None]

MOST_XLSX_ROWS = 1_048_575  # a sheet holds one more, for the names of the columns
_CHUNK = 64 * 1024
_EXACT = 2**53  # whole numbers beyond it are not what a spreadsheet would show
# A spreadsheet may drop what cannot be seen in front of a sign; a tab or a line break may end the cell.
_UNSEEN = r"\s\x00-\x1f\x7f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_STARTS_FORMULA = re.compile(rf"[\t\r\n]|[{_UNSEEN}]*[=+\-@＝＋－＠]")


def _datetime(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _json(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def harmless(text: str) -> str:
    """The text as a cell no spreadsheet takes for a formula."""
    if text[:1].isalnum():  # nearly all of them
        return text
    return "'" + text if _STARTS_FORMULA.match(text) else text


_TEXTS: dict[Kind, Callable[[Any], str]] = {
    Kind.TEXT: str,
    Kind.INT: str,
    Kind.FLOAT: repr,
    Kind.BOOL: _bool,
    Kind.DECIMAL: _decimal,
    Kind.DATETIME: _datetime,
    Kind.DATE: date.isoformat,
    Kind.TIME: time.isoformat,
    Kind.UUID: str,
    Kind.BYTES: _base64,
    Kind.JSON: _json,
}
_CSV_TEXTS: PartialTable[Kind, Callable[[Any], str]] = PartialTable(
    {
        Kind.TEXT: harmless,
        Kind.BYTES: lambda value: harmless(_base64(value)),  # "+" is a letter of base64
    },
    others="are written as in `_TEXTS`; no spreadsheet takes them for a formula",
)


# -- texts in several languages


def columns_of_texts(view: LocaleView, columns: Sequence[FieldMeta]) -> tuple[FieldMeta, ...]:
    """The columns of a file: of a text the one that is shown, and of all its translations one each."""
    own: list[FieldMeta] = []
    for column in columns:
        field = stored_field(column)
        rules = locale_rules(field)
        if rules is None:
            own.append(column)
        elif column is field:
            own.append(text_field(field, view.locale))
        else:
            own += [text_field(field, code, exact=True) for code in rules.locales]
    return tuple(own)


async def rows_of_texts(
    view: LocaleView, fields: Sequence[FieldMeta], columns: Sequence[FieldMeta], batches: Batches
) -> Batches:
    """Rows of stored fields as rows of these columns."""
    readers = [_cell_reader(view, column) for column in columns]
    places = [next(i for i, f in enumerate(fields) if f is stored_field(column)) for column in columns]
    cells = list(zip(places, readers, strict=True))
    async with aclosing(batches):
        async for rows in batches:
            yield [
                [row[i] if read is None or row[i] is None else read(row[i]) for i, read in cells]
                for row in rows
            ]


def _cell_reader(view: LocaleView, column: FieldMeta) -> Callable[[Any], Any] | None:
    text: TextOf | None = column.extra.get(TEXT)
    rules = None if text is None else locale_rules(text.field)
    if text is None or rules is None:
        return None
    if text.is_shown:
        return rules.reader(view.locale)
    code = text.codes[0]
    return lambda stored: rules.read(stored).get(code)


# -- CSV


async def write_csv(fields: Sequence[FieldMeta], batches: Batches) -> AsyncGenerator[bytes, None]:
    """RFC 4180 in UTF-8; the names of the columns leave together with the first rows."""
    cells = [_CSV_TEXTS.get(f.kind) or _TEXTS[f.kind] for f in fields]
    head = [[harmless(f.api) for f in fields]]
    async with aclosing(batches):
        async for rows in batches:
            yield _csv(head + [_line(cells, row) for row in rows])
            head = []
    if head:
        yield _csv(head)


def _line(cells: Sequence[Callable[[Any], str]], row: Row) -> list[str]:
    return ["" if value is None else text(value) for text, value in zip(cells, row, strict=True)]


def _csv(lines: Iterable[Sequence[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\r\n").writerows(lines)
    return out.getvalue().encode()


# -- XLSX


async def write_xlsx(
    fields: Sequence[FieldMeta], batches: Batches, created_at: datetime
) -> AsyncGenerator[bytes, None]:
    """A workbook with one sheet. It is whole on disk, and the database let go, before its first byte."""
    directory = await run_in_thread(lambda: tempfile.TemporaryDirectory(prefix="maniflex-export-"))
    try:
        book = _Book(Path(directory.name), fields, created_at)
        try:
            async with aclosing(batches):
                async for rows in batches:
                    await run_in_thread(lambda rows=rows: book.write(rows))  # type: ignore[misc]  # its type is known
            await run_in_thread(book.finish)
        finally:
            await run_in_thread(book.let_go)
        file = await run_in_thread(lambda: book.path.open("rb"))
        try:
            while chunk := await run_in_thread(lambda: file.read(_CHUNK)):
                yield chunk
        finally:
            file.close()
    finally:
        await run_in_thread(directory.cleanup)


async def run_in_thread(call: Callable[[], T]) -> T:
    """The result of `call`; a cancelled task waits for the call to end first, because it uses our files."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    cancellation = None
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        running.exception()  # looked at, so that asyncio does not report it as forgotten
        raise cancellation
    return running.result()


class _Book:
    """A workbook on its way to a file; only the row that is being written is in memory."""

    def __init__(self, directory: Path, fields: Sequence[FieldMeta], created: datetime) -> None:
        import xlsxwriter  # type: ignore[import-untyped]  # it has no types

        self.path = directory / "export.xlsx"
        self._fields = tuple(fields)
        self._row = 0
        self._book = xlsxwriter.Workbook(
            str(self.path),
            {
                "constant_memory": True,
                "tmpdir": str(directory),
                "use_zip64": True,
                "strings_to_formulas": False,
                "strings_to_urls": False,
                "strings_to_numbers": False,
            },
        )
        self._book.set_properties({"created": created})
        self._sheet = self._book.add_worksheet("Data")
        for column, field in enumerate(fields):
            self._text(column, field, field.api)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._row += 1
            for column, (field, value) in enumerate(zip(self._fields, row, strict=True)):
                if value is not None:
                    self._cell(column, field, value)

    def _cell(self, column: int, field: FieldMeta, value: Any) -> None:
        if field.kind is Kind.BOOL:
            self._sheet.write_boolean(self._row, column, value)
        elif (field.kind is Kind.INT and -_EXACT <= value <= _EXACT) or (
            field.kind is Kind.FLOAT and math.isfinite(value)
        ):
            self._sheet.write_number(self._row, column, value)
        else:
            self._text(column, field, _TEXTS[field.kind](value))

    def _text(self, column: int, field: FieldMeta, text: str) -> None:
        if self._sheet.write_string(self._row, column, text) != 0:  # it would be cut off
            raise ExportTooLarge(f"a value of {field.api!r} is longer than a cell of a sheet; use format=csv")

    def finish(self) -> None:
        self._book.close()

    def let_go(self) -> None:
        """Close the files of a workbook, also of one that is not finished."""
        self._sheet._opt_close()


# Rows → lines of JSON, each as the API would answer with it.


async def write_jsonl(
    serializer: Serializer, batches: Batches, encode: Callable[[Any], bytes]
) -> AsyncGenerator[bytes, None]:
    """One object a line, in UTF-8."""
    async with aclosing(batches):
        async for rows in batches:
            yield b"".join(encode(serializer.struct_of(row)) + b"\n" for row in rows)


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
        rules = runtime.rules[model.cls]
        self._transforms = rules.changes(Operation.EXPORT)
        self._judge = rules.judge(Operation.EXPORT, item=False)
        self._places = places
        self._formats = available_formats()
        self._has_texts = bool(localized_fields(model))

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
            match_text = f"{count} rows match" if not self._judge.hides_rows else "too many rows match"
            raise ExportTooLarge(f"{match_text} and an export has at most {most}; narrow the filters")
        await self._places.wait_for_one()
        ctx.exports, ctx.total = True, count

    async def respond(self, ctx: Context) -> None:
        if ctx.response is not None:
            return
        if not ctx.exports and ctx._result is None:
            raise no_answer_error(ctx)
        format, now = self._format(ctx), self._clock.now()
        hidden_fields = await ctx.redacted(self._model.cls)
        name = f"{self._model.table}-{now:%Y%m%dT%H%M%SZ}.{format}"
        ctx.response = Response(
            200,
            content_type=format.content_type,
            headers={"content-disposition": f'attachment; filename="{name}"'},
            stream=self._file(ctx, format, hidden_fields),
        )
        if self._has_texts:
            mark_shown_language(ctx, ctx.response)

    # -- the file, while it is sent ----------------------------------------------------------

    async def _file(
        self, ctx: Context, format: Format, hidden: Collection[str]
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._places.send(self._make(ctx, format, hidden))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _make(self, ctx: Context, format: Format, hidden: Collection[str]) -> AsyncGenerator[bytes, None]:
        columns = tuple(f for f in self._columns(ctx) if stored_field(f).api not in hidden)
        fields = stored_fields(columns)
        is_judged = bool(self._judge) and ctx._result is None and ctx.exports
        read_fields = self._model.fields if is_judged else fields
        rows = self._limit_rows(self._rows(ctx, read_fields, format), self._most(ctx, format))
        if is_judged:
            rows = self._drop_denied(ctx, fields, rows)
        if self._transforms:
            rows = change_rows(ctx, self._transforms, fields, rows)
        if ctx.exported_rows is not None:
            rows = self._count_rows(ctx, rows)
        return write_rows(
            ctx.runtime, self._model, ctx.view if self._has_texts else NO_LOCALE, columns, rows, format
        )

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

    async def _drop_denied(self, ctx: Context, fields: Sequence[FieldMeta], batches: Batches) -> Batches:
        """These fields of the rows that the caller may see; they come with all fields."""
        places = [self._model.fields.index(f) for f in fields]
        async with aclosing(batches):
            async for rows in batches:
                allowed_rows = [row for row in rows if await self._judge.allows_row(ctx, row)]
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


def write_rows(
    runtime: Runtime,
    model: ModelMeta,
    view: LocaleView,
    columns: Sequence[FieldMeta],
    rows: Batches,
    format: Format,
) -> AsyncGenerator[bytes, None]:
    """A file with these columns; the rows have the stored fields that the columns show."""
    fields = stored_fields(columns)
    if format is Format.JSONL:
        if not localized_fields(model):
            return write_jsonl(runtime.serializers[model.cls].of(fields, columns), rows, runtime.encode)
        serializer = Serializer(model, fields, columns, view=view, as_cells=True)
        return write_jsonl(serializer, rows, runtime.encode)
    if localized_fields(model):
        columns = columns_of_texts(view, columns)
        rows = rows_of_texts(view, fields, columns, rows)
    if format is Format.CSV:
        return write_csv(columns, rows)
    return write_xlsx(columns, rows, runtime.clock.now())


def stored_fields(columns: Sequence[FieldMeta]) -> tuple[FieldMeta, ...]:
    """The fields that have to be read for these columns."""
    return tuple(dict.fromkeys(map(stored_field, columns)))


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


# How many exports are made at once, and for how long each of them holds its place.
#
# An export holds a place, a connection and a snapshot of the database while its file is made, not while
# it is taken: a client that reads slowly would keep everybody else waiting. At first the file is made as
# it is taken. After `SPOOL_AFTER`, or as soon as another export waits for a place, it is made as fast as
# it can be, into a temporary file that the client is then served from. There may be `SPOOLS_PER_PLACE`
# such files for each place; beyond that the slowest client is left, if it reads more slowly than
# `FAIR_RATE`.


RETRY_AFTER = {"retry-after": "10"}
SPOOL_AFTER = 5.0  # seconds
WAIT_FOR_PLACE = 3.0  # seconds
SPOOLS_PER_PLACE = 8
FAIR_RATE = 64 * 1024  # bytes a second
_IN_MEMORY = 1024 * 1024  # bytes of an export that wait for their client outside the file
_PIECE = 256 * 1024


class Places:
    """The places that exports are made at."""

    def __init__(self, most: int) -> None:
        self._most_spools = most * SPOOLS_PER_PLACE
        self._free = most
        self._waiting: list[asyncio.Future[None]] = []
        self._made: set[_PlacedExport] = set()  # exports that hold a place
        self._spools: set[_PlacedExport] = set()  # exports that are made and not taken yet

    async def wait_for_one(self) -> None:
        """Have those who hold a place hurry, and wait a little until one is free."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_FOR_PLACE):
                while self._free < 1:
                    for export in self._made:
                        export.spool()
                    self._waiting.append(asyncio.get_running_loop().create_future())
                    await self._waiting[-1]
        if self._free < 1:
            raise ExportBusy(headers=RETRY_AFTER)

    async def send(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The chunks of an export, which holds a place until the last one is made."""
        async with aclosing(chunks):
            await self.wait_for_one()
            self._free -= 1
            export = _PlacedExport(self, chunks)
            self._made.add(export)
            try:
                while (chunk := await export.next()) is not None:
                    yield chunk
            finally:
                await export.close()
                self._spools.discard(export)
                self.give_back(export)
                self._move_spools()

    def keep_spool(self, export: _PlacedExport) -> None:
        """Take the place of an export that is made, if there is room for what its client has not taken."""
        self._spools.add(export)
        self._move_spools()

    def give_back(self, export: _PlacedExport) -> None:
        if export in self._made:
            self._made.discard(export)
            self._free += 1
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()

    def _move_spools(self) -> None:
        """Free the places of made exports while there are not too many files; leave the slowest client."""
        while exports := [export for export in self._spools if export in self._made]:
            if len(self._spools) - len(exports) < self._most_spools:
                self.give_back(exports[0])
                continue
            slowest = min(self._spools, key=_PlacedExport.rate)
            if slowest.rate() >= FAIR_RATE:
                return
            slowest.leave()
            self._spools.discard(slowest)
            self.give_back(slowest)


class _PlacedExport:
    """One export: its chunks as its client takes them, or from what was made ahead of it."""

    def __init__(self, places: Places, chunks: AsyncGenerator[bytes, None]) -> None:
        self._places = places
        self._chunks = chunks
        self._making = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None
        self._spool = _ExportSpool()
        self._began_at = monotonic()
        self._taken = 0
        self._timer = asyncio.get_running_loop().call_later(SPOOL_AFTER, self.spool)

    def rate(self) -> float:
        """Bytes a second that its client has taken."""
        return self._taken / max(monotonic() - self._began_at, 0.001)

    def spool(self) -> None:
        """Make the rest without waiting for the client."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._make_ahead())

    def leave(self) -> None:
        """Break the answer off."""
        self._spool.discard(ExportBusy("the client reads too slowly, and others wait"))

    async def next(self) -> bytes | None:
        if self._ahead is None:
            async with self._making:
                chunk = await anext(self._chunks, None)
        else:
            chunk = await self._spool.read()
        self._taken += 0 if chunk is None else len(chunk)
        return chunk

    async def close(self) -> None:
        self._timer.cancel()
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait((self._ahead,))
        self._spool.close()

    async def _make_ahead(self) -> None:
        try:
            async with self._making:
                while (chunk := await anext(self._chunks, None)) is not None:
                    await self._spool.write(chunk)
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # raised where the client takes: from a task it could end the loop
            self._spool.end(error)
        else:
            self._spool.end()
        self._places.keep_spool(self)


class _ExportSpool:
    """Bytes between the making and the taking: the first in memory, then in a file without a name."""

    def __init__(self) -> None:
        self._memory: deque[bytes] = deque()
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._read_to = self._written_to = 0  # places in the file
        self._is_writing = False
        self._is_ended = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def write(self, chunk: bytes) -> None:
        in_file = self._written_to > self._read_to
        if not in_file and self._in_memory + len(chunk) <= _IN_MEMORY:
            self._memory.append(chunk)
            self._in_memory += len(chunk)
        else:
            self._is_writing = True
            try:
                if self._file is None:
                    self._file = await run_in_thread(tempfile.TemporaryFile)
                handle, place = self._file.fileno(), self._written_to
                await run_in_thread(lambda: _write_at(handle, chunk, place))
                self._written_to += len(chunk)
            finally:
                self._is_writing = False
        self._news.set()

    def end(self, error: BaseException | None = None) -> None:
        self._is_ended = True
        self._error = error
        self._news.set()

    def discard(self, error: BaseException) -> None:
        """Give the client the error in place of what it has not taken."""
        self._memory.clear()
        self._read_to = self._written_to
        self.end(error)

    async def read(self) -> bytes | None:
        """The next bytes; none at the end."""
        while True:
            if self._memory:
                chunk = self._memory.popleft()
                self._in_memory -= len(chunk)
                return chunk
            if self._read_to < self._written_to:
                return await self._read_file()
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()

    async def _read_file(self) -> bytes:
        assert self._file is not None
        handle, place = self._file.fileno(), self._read_to
        size = min(_PIECE, self._written_to - place)
        chunk = await run_in_thread(lambda: os.pread(handle, size, place))
        self._read_to += len(chunk)
        if self._read_to == self._written_to and not self._is_writing:
            self._read_to = self._written_to = 0  # the client keeps up: the file need not grow
        return chunk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write_at(handle: int, chunk: bytes, place: int) -> None:
    view = memoryview(chunk)
    while view:
        count = os.pwrite(handle, view, place)
        view, place = view[count:], place + count
