"""Lines of a file, one after the other: the only home of how csv, jsonl and xlsx are read.

A reader is fed with the bytes of a file and gives rows with the values of their columns. A line that cannot
be read becomes a row with a problem, so that the lines around it are still read; memory holds one line and
one piece of the file. `UnreadableFile` is for what concerns the file as a whole.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Protocol

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
        from maniflex.transfer.csv_source import CsvReader

        return CsvReader(form)
    if kind is FileFormat.JSONL:
        from maniflex.transfer.jsonl_source import JsonlReader

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
