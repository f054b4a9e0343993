"""Rows of the first sheet of an xlsx file, read one after the other."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

from maniflex.transfer.source import (
    LONGEST_LINE,
    MOST_COLUMNS,
    SourceRow,
    UnreadableFile,
    check_columns,
    text_problem,
)

MISSING = 'to read xlsx files: pip install "maniflex[import]"; or save the file as csv'
_MOST_ROWS = 1024 * 1024  # of a sheet, as spreadsheets have them


class XlsxReader:
    """Reads xlsx; the first row names the columns."""

    def __init__(self) -> None:
        try:
            import openpyxl  # noqa: F401  # asked for now, before anything is stored
        except ImportError:
            raise UnreadableFile(MISSING) from None
        self.columns: Sequence[str] = ()
        self._file = tempfile.TemporaryFile(prefix="maniflex-import-")  # noqa: SIM115  # closed with the last row

    def feed(self, piece: bytes, *, is_last: bool) -> Iterator[SourceRow]:
        """Nothing until the file is whole, then all of its rows."""
        self._file.write(piece)
        if is_last:
            with self._file:
                yield from self._rows()

    def _rows(self) -> Iterator[SourceRow]:
        import openpyxl

        try:
            with zipfile.ZipFile(self._file) as archive:
                check_workbook(archive)
            book = openpyxl.load_workbook(self._file, read_only=True, data_only=False, keep_links=False)
            sheet = book.worksheets[0]
            # Not as large as the file claims: rows and cells that are not there would be filled in.
            sheet.reset_dimensions()
            for number, cells in enumerate(sheet.iter_rows(max_row=_MOST_ROWS), 1):
                yield from self._row(number, cells)
        except UnreadableFile:
            raise
        except Exception:  # of zlib, zipfile, expat or openpyxl: bytes of strangers find every one of them
            raise UnreadableFile("this is no xlsx file that can be read; save it again, or as csv") from None

    def _row(self, line: int, cells: Sequence[Any]) -> Iterator[SourceRow]:
        width = len(self.columns)
        if width and len(cells) > MOST_COLUMNS:
            yield SourceRow(line=line, problem=f"has a value behind the last of the {width} columns")
            return
        values = [cell.value for cell in cells]
        if all(value is None or value == "" for value in values):
            return
        if not self.columns:
            while values and values[-1] is None:
                values.pop()
            self.columns = check_columns(["" if value is None else str(value) for value in values])
            return
        problem = next((text for cell in cells if (text := _cell_problem(cell))), "")
        if not problem and any(value is not None for value in values[width:]):
            problem = f"has a value behind the last of the {width} columns"
        values = [*values[:width], *[None] * (width - len(values))]
        texts = ["" if value is None else str(value) for value in values]
        by_column = {} if problem else dict(zip(self.columns, values, strict=True))
        yield SourceRow(line=line, values=by_column, problem=problem, texts=texts)


def _cell_problem(cell: Any) -> str:
    kind = getattr(cell, "data_type", "n")
    if kind == "f":
        return f"cell {cell.coordinate} is a formula; save the file with values"
    if kind == "e":
        return f"cell {cell.coordinate} holds the error {cell.value}"
    if isinstance(cell.value, str):
        if len(cell.value) > LONGEST_LINE:
            return f"is longer than {LONGEST_LINE:,} characters"
        return text_problem(cell.value, "utf-8")
    return ""


# How large a workbook may be: what has to be in memory at once stays small, whatever the file claims.


_MOST_IN_MEMORY = 64 * 1024 * 1024  # of all parts that are read as a whole
_MOST_UNPACKED = 4 * 1024 * 1024 * 1024
_MOST_BETWEEN_ROWS = 4 * 1024 * 1024  # one row is in memory at a time
_DENSEST = 200  # bytes out of one; sheets that people made stay far below
_CHUNK = 1024 * 1024
_LONGEST_TAG = 32
_SHEETS = "xl/worksheets/"
_ROW_END = re.compile(rb"</(?:[\w.-]+:)?row\s*>")
# A part is read as a whole when one of these says so, wherever it lies in the archive.
_WHOLE_PART = re.compile(rb"(?i)sharedStrings\+xml|sheet\.main\+xml|template\.main\+xml|chartsheet")
_PART_NAME = re.compile(rb"""(?i)(?:PartName|Target)\s*=\s*["']([^"']*)""")
TOO_LARGE = "the workbook is too large to be read; save it as csv"


def check_workbook(archive: zipfile.ZipFile) -> None:
    """Raise `UnreadableFile` for a workbook that would fill the memory."""
    parts = archive.infolist()
    sheets = [one for one in parts if one.filename.startswith(_SHEETS) and one.filename.endswith(".xml")]
    sheet_size = sum(one.file_size for one in sheets)
    size = sum(one.file_size for one in parts)
    if size > _MOST_UNPACKED or size - sheet_size > _MOST_IN_MEMORY:
        raise UnreadableFile(TOO_LARGE)
    if size <= _MOST_BETWEEN_ROWS:
        return
    _check_places(archive, [one for one in parts if one not in sheets])
    for sheet in sheets:
        if sheet.file_size > _DENSEST * max(sheet.compress_size, 1) and sheet.file_size > _MOST_IN_MEMORY:
            raise UnreadableFile(TOO_LARGE)
        if sheet.file_size > _MOST_BETWEEN_ROWS:
            _check_rows(archive, sheet)


def _check_places(archive: zipfile.ZipFile, parts: list[zipfile.ZipInfo]) -> None:
    """Refuse a sheet that is said to be something else, which would be read as a whole."""
    for part in parts:
        if not part.filename.endswith((".rels", "[Content_Types].xml")):
            continue
        for element in archive.read(part).split(b"<"):
            names = _PART_NAME.findall(element) if _WHOLE_PART.search(element) else ()
            if any(b"worksheets" in name.lower() for name in names):
                raise UnreadableFile(TOO_LARGE)


def _check_rows(archive: zipfile.ZipFile, sheet: zipfile.ZipInfo) -> None:
    """Refuse a sheet in which one row, or what stands beside the rows, is too long."""
    size, last_end, tail = 0, 0, b""  # how far it was read, and where the last row ended
    with archive.open(sheet) as stream:
        while chunk := stream.read(_CHUNK):
            text, start = tail + chunk, size - len(tail)
            size += len(chunk)
            ends = [start + match.end() for match in _ROW_END.finditer(text)]
            if (ends[0] if ends else size) - last_end > _MOST_BETWEEN_ROWS:
                raise UnreadableFile(TOO_LARGE)
            last_end = ends[-1] if ends else last_end
            tail = text[-_LONGEST_TAG:]
    if size - last_end > _MOST_BETWEEN_ROWS:
        raise UnreadableFile(TOO_LARGE)
