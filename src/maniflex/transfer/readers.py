"""The reader of each format of files; those that are not asked for are not imported."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.transfer.source import FileFormat, RowReader, TextForm


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
