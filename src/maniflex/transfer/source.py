"""Lines of a file, one after the other: the only home of how csv, jsonl and xlsx are read.

A reader is fed with the bytes of a file and gives rows with the values of their columns. A line that cannot
be read becomes a row with a problem, so that the lines around it are still read; memory holds one line and
one piece of the file. `UnreadableFile` is for what concerns the file as a whole.
"""

from __future__ import annotations

import asyncio
import codecs
import csv
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Protocol

from maniflex._json import JsonFault, NotJson, read_text
from maniflex.errors import ManiflexError

LONGEST_LINE = 1024 * 1024  # characters; a longer line is refused
MOST_COLUMNS = 1000
ENCODINGS = ("utf-8", "utf-16", "latin-1")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}


class UnreadableFile(ManiflexError):
    """A file that holds no rows; the message says what to do."""


class FileFormat(StrEnum):
    """What an import reads."""

    CSV = "csv"
    JSONL = "jsonl"
    XLSX = "xlsx"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """How the text of a file is written."""

    encoding: str = "utf-8"
    separator: str = ","


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One line: the values by column, or the reason why there are none."""

    line: int
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    texts: Sequence[str] = ()  # the line as it was, for the file of refused lines


class RowReader(Protocol):
    """Reads one file, piece by piece."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns, known with the first row."""

    def feed(self, piece: bytes, *, is_last: bool) -> Iterator[SourceRow]:
        """The rows that are whole with this piece."""


def format_of(file_name: str) -> FileFormat:
    """The format by the ending of a name; `UnreadableFile` for others."""
    ending = file_name.rpartition(".")[2].lower()
    endings = {"ndjson": "jsonl", "tsv": "csv", "txt": "csv"}
    try:
        return FileFormat(endings.get(ending, ending))
    except ValueError:
        raise UnreadableFile("the name of the file ends with .csv, .jsonl or .xlsx") from None


def detect_form(start: bytes) -> TextForm:
    """How a text seems to be written, by its first bytes."""
    encoding = "utf-8"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _has_empty_bytes(start):
        encoding = "utf-16"
    text = start.decode(_codec(encoding, start), "replace").lstrip("\ufeff")
    head = text.partition("\n")[0]
    counts = {separator: head.count(separator) for separator in SEPARATORS.values()}
    separator = max(counts, key=lambda one: counts[one])
    return TextForm(encoding=encoding, separator=separator if counts[separator] else ",")


def _has_empty_bytes(start: bytes) -> bool:
    """Whether every second byte is NUL, as in utf-16 without a mark."""
    sample = start[:200]
    return len(sample) >= 8 and sample[1::2].count(0) > len(sample) // 3


def _codec(encoding: str, start: bytes) -> str:
    if encoding == "utf-8":
        return "utf-8-sig"
    if encoding == "utf-16" and not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16-le"
    return encoding


class Lines:
    """The physical lines of a text that comes in pieces; one that is too long comes without its text."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder: codecs.IncrementalDecoder | None = None
        self._rest = ""

    def feed(self, piece: bytes, *, is_last: bool) -> Iterator[str]:
        """Whole lines with their line breaks, and parts of lines longer than `LONGEST_LINE`."""
        if self._decoder is None:
            errors = "surrogateescape" if self._encoding == "utf-8" else "replace"
            self._decoder = codecs.getincrementaldecoder(_codec(self._encoding, piece))(errors)
        text = self._rest + self._decoder.decode(piece, is_last)
        *lines, self._rest = text.split("\n")
        for line in lines:
            yield f"{line}\n"
        if self._rest and (is_last or len(self._rest) > LONGEST_LINE):
            rest, self._rest = self._rest, ""
            yield rest


def text_problem(text: str, encoding: str) -> str:
    """Why a text cannot be stored, if it cannot."""
    if "\x00" in text:
        return "contains a NUL character"
    if encoding == "utf-8" and any("\udc80" <= letter <= "\udcff" for letter in text):
        return "is not written in utf-8; choose the encoding of the file"
    if encoding == "utf-16" and "\ufffd" in text:
        return "is not written in utf-16; choose the encoding of the file"
    return ""


def check_columns(names: Sequence[str]) -> list[str]:
    """The names of the columns, each once; `UnreadableFile` for a head that cannot be one."""
    columns = [name.strip(" \t\r\n\ufeff") or f"column {number}" for number, name in enumerate(names, 1)]
    if len(columns) > MOST_COLUMNS:
        raise UnreadableFile(f"the file has more than {MOST_COLUMNS} columns; is the separator right?")
    for name in columns:
        if columns.count(name) > 1:
            raise UnreadableFile(f"two columns are called {name[:80]!r}; rename one of them")
        if text_problem(name, "utf-8") or "\ufffd" in name:
            raise UnreadableFile("the first line cannot be read; choose the encoding of the file")
    return columns


def make_reader(kind: FileFormat, form: TextForm, columns: Sequence[str] = ()) -> RowReader:
    """The reader of a format; `columns` are those of a jsonl file, which no line of it tells."""
    if kind is FileFormat.CSV:
        return CsvReader(form)
    if kind is FileFormat.JSONL:
        return JsonlReader(form, columns)
    from maniflex.transfer.xlsx_source import XlsxReader

    return XlsxReader()


async def first_rows(
    pieces: AsyncIterator[bytes], kind: FileFormat, form: TextForm
) -> tuple[Sequence[str], list[SourceRow]]:
    """The columns of a file and the first of its rows; `UnreadableFile` for one without columns."""
    reader = make_reader(kind, form)
    rows: list[SourceRow] = []
    async for some in read_rows(pieces, reader, 100):
        rows = some
        break
    if not reader.columns:
        raise UnreadableFile("the file has no line with the names of its columns")
    return list(reader.columns), rows


async def read_rows(
    pieces: AsyncIterator[bytes], reader: RowReader, most: int
) -> AsyncIterator[list[SourceRow]]:
    """The rows of a file, at most `most` at a time; they are read on a thread."""
    batch: list[SourceRow] = []
    piece: bytes | None = None
    async for following in pieces:
        if piece is not None:
            async for rows in _pull(reader.feed(piece, is_last=False), most):
                batch += rows
                while len(batch) >= most:
                    yield batch[:most]
                    batch = batch[most:]
        piece = following
    async for rows in _pull(reader.feed(piece or b"", is_last=True), most):
        batch += rows
        while len(batch) >= most:
            yield batch[:most]
            batch = batch[most:]
    if batch:
        yield batch


async def _pull(rows: Iterator[SourceRow], most: int) -> AsyncIterator[list[SourceRow]]:
    while some := await asyncio.to_thread(_take, rows, most):
        yield some


def _take(rows: Iterable[SourceRow], most: int) -> list[SourceRow]:
    return list(islice(rows, most))


# Rows of a csv file: separators, quotation marks, lines that cannot be read.


class CsvReader:
    """Reads csv; the first line names the columns."""

    def __init__(self, form: TextForm) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
        self.columns: Sequence[str] = ()
        self._form = form
        self._lines = Lines(form.encoding)
        self._line = 1  # of the file, counted from one
        self._start = 1  # where the record began that is being read
        self._parts: list[str] = []
        self._size = 0
        self._is_quoted = False  # the line ended inside quotation marks

    def feed(self, piece: bytes, *, is_last: bool) -> Iterator[SourceRow]:
        """The rows that are whole with this piece."""
        for line in self._lines.feed(piece, is_last=is_last):
            self._size += len(line)
            self._is_quoted = _ends_quoted(line, self._form.separator, self._is_quoted)
            if self._size <= LONGEST_LINE:
                self._parts.append(line)
            if line.endswith("\n"):
                self._line += 1
            if not self._is_quoted and line.endswith("\n"):
                yield from self._finish()
        if is_last and self._size:
            yield from self._finish()

    def _finish(self) -> Iterator[SourceRow]:
        text, start = "".join(self._parts).rstrip("\r\n"), self._start
        is_too_long, is_open = self._size > LONGEST_LINE, self._is_quoted
        self._parts, self._size, self._is_quoted, self._start = [], 0, False, self._line
        if is_too_long:
            yield SourceRow(line=start, problem=f"is longer than {LONGEST_LINE:,} characters")
        elif is_open:
            yield SourceRow(line=start, problem="opens a quotation mark that is never closed")
        elif text.strip(f" \t{self._form.separator}"):
            yield from self._row(text, start)

    def _row(self, text: str, line: int) -> Iterator[SourceRow]:
        try:
            cells = next(csv.reader([text], delimiter=self._form.separator))
        except (csv.Error, StopIteration):
            yield SourceRow(line=line, problem="is no line of a csv file", texts=(text,))
            return
        if not self.columns:
            self.columns = check_columns(cells)
            return
        problem = text_problem(text, self._form.encoding)
        if not problem and len(cells) != len(self.columns):
            problem = f"has {len(cells)} cells, and the first line has {len(self.columns)}"
        values = {} if problem else dict(zip(self.columns, cells, strict=True))
        yield SourceRow(line=line, values=values, problem=problem, texts=cells)


def _ends_quoted(line: str, separator: str, is_quoted: bool) -> bool:
    """Whether a line ends inside quotation marks; they count at the beginning of a cell."""
    if not is_quoted and '"' not in line:
        return False
    place = 0
    while True:
        if is_quoted or line.startswith('"', place):
            place += 0 if is_quoted else 1
            is_quoted = False
            while True:
                end = line.find('"', place)
                if end < 0:
                    return True
                if line.startswith('"', end + 1):
                    place = end + 2
                    continue
                place = end + 1
                break
        following = line.find(separator, place)
        if following < 0:
            return False
        place = following + 1


# Rows of a jsonl file: one JSON object in each line.


FIRST_LINES = 100  # they tell which columns there are


class JsonlReader:
    """Reads jsonl; the columns are the keys of the first lines."""

    def __init__(self, form: TextForm, columns: Sequence[str] = ()) -> None:
        self._is_open = not columns  # further keys are further columns
        self._names = dict.fromkeys(columns)
        self._form = form
        self._lines = Lines(form.encoding)
        self._line = 0
        self._size = 0
        self._parts: list[str] = []

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self._names)

    def feed(self, piece: bytes, *, is_last: bool) -> Iterator[SourceRow]:
        """The rows that are whole with this piece."""
        for line in self._lines.feed(piece, is_last=is_last):
            self._size += len(line)
            if self._size <= LONGEST_LINE:
                self._parts.append(line)
            if line.endswith("\n"):
                yield from self._finish()
        if is_last and self._size:
            yield from self._finish()

    def _finish(self) -> Iterator[SourceRow]:
        self._line += 1
        text, is_too_long = "".join(self._parts).strip(), self._size > LONGEST_LINE
        self._parts, self._size = [], 0
        if is_too_long:
            yield SourceRow(line=self._line, problem=f"is longer than {LONGEST_LINE:,} characters")
        elif text:
            values, problem = self._values(text)
            yield SourceRow(line=self._line, values=values, problem=problem, texts=(text,))

    def _values(self, text: str) -> tuple[dict[str, Any], str]:
        problem = text_problem(text, self._form.encoding)
        if problem:
            return {}, problem
        try:
            values = read_text(text, exact=True)
        except NotJson as refused:
            return {}, "is no JSON object" if refused.fault is JsonFault.SYNTAX else str(refused)
        if not isinstance(values, dict):
            return {}, "is no JSON object"
        unknown = [name for name in values if name not in self._names]
        if unknown and (not self._is_open or self._line > FIRST_LINES):
            return {}, f"has the key {unknown[0][:80]!r}, which none of the first {FIRST_LINES} lines has"
        self._names.update(dict.fromkeys(unknown))
        if len(self._names) > MOST_COLUMNS:
            raise UnreadableFile(f"the lines have more than {MOST_COLUMNS} different keys")
        return values, ""
