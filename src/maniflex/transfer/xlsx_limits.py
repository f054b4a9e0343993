"""How large a workbook may be: what has to be in memory at once stays small, whatever the file claims."""

from __future__ import annotations

import re
import zipfile

from maniflex.transfer.source import UnreadableFile

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
