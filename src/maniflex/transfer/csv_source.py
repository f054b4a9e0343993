"""Rows of a csv file: separators, quotation marks, lines that cannot be read."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from maniflex.transfer.source import LONGEST_LINE, Lines, SourceRow, TextForm, check_columns, text_problem


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
