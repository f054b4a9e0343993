"""Rows of a jsonl file: one JSON object in each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from maniflex._json import JsonFault, NotJson, read_text
from maniflex.transfer.source import (
    LONGEST_LINE,
    MOST_COLUMNS,
    Lines,
    SourceRow,
    TextForm,
    UnreadableFile,
    text_problem,
)

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
