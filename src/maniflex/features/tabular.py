"""Rows → a file people open in a spreadsheet: the only home of how values look in CSV and XLSX.

Text is never a formula: in CSV a cell that would start one gets an apostrophe in front, in XLSX
every text is a text cell. Numbers stay numbers, but not where a spreadsheet would drop digits.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
import re
import tempfile
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from maniflex._locales import LocaleView
from maniflex._tables import PartialTable
from maniflex.db.port import Row
from maniflex.errors import ExportTooLarge
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import TEXT, TextOf, locale_rules, stored_field, text_field
from maniflex.pipeline.serializer import Serializer

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
