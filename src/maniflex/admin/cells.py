"""Values → what a page shows of them, by the kind of the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from maniflex.model.meta import FieldMeta, Kind

if TYPE_CHECKING:
    from maniflex.admin.file_fields import FileItem

_MOST_LETTERS = 80
_TONES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value: `kind` chooses the markup."""

    kind: str  # text, number, time, bool, badge, null, empty, code, link, file, files, hidden
    text: str = ""
    title: str = ""  # the whole of it, or the instant in UTC
    url: str = ""
    tone: int = 0  # of a badge
    image: str = ""  # of a file that can be shown
    size: str = ""  # of a file
    label: str = ""  # of the column
    edit: str = ""  # of a cell that can be changed in place: where its value is sent
    value: str = ""
    options: str = ""  # what can be chosen, as JSON
    first: bool = False
    files: Sequence[FileItem] = ()  # of a list of files


HIDDEN = Cell(kind="hidden")
NULL = Cell(kind="null", text="null")


def cell(field: FieldMeta, value: Any, zone: ZoneInfo, *, whole: bool = False) -> Cell:
    """What a page shows of a value; `whole` cuts nothing off."""
    if value is None:
        return NULL
    if field.enum is not None:
        tone = field.enum.index(value) % _TONES if value in field.enum else 3
        return Cell(kind="badge", text=str(value), tone=tone)
    return _CELLS[field.kind](value, zone, whole)


def _text(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    text = str(value)
    if not text:
        return Cell(kind="empty", text='""')
    if whole or len(text) <= _MOST_LETTERS:
        return Cell(kind="text", text=text)
    return Cell(kind="text", text=text[: _MOST_LETTERS - 1].rstrip() + "…", title=text[:2000])


def _number(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    return Cell(kind="number", text=group_digits(str(value)), title=str(value))


def _bool(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    return Cell(kind="bool", text="✓" if value else "–", title="true" if value else "false")


def _datetime(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    try:
        instant = datetime.fromisoformat(str(value))
    except ValueError:
        return Cell(kind="text", text=str(value))
    local = local_time(instant, zone)
    form = "%Y-%m-%d %H:%M:%S" if whole or local.second or local.microsecond else "%Y-%m-%d %H:%M"
    return Cell(
        kind="time", text=local.strftime(form) + (f" {local.tzname()}" if whole else ""), title=str(value)
    )


def local_time(instant: datetime, zone: ZoneInfo) -> datetime:
    """An instant in a zone; as it is where that would be before the year 1 or behind 9999."""
    try:
        return instant.astimezone(zone)
    except OverflowError:
        return instant


def _plain_time(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    return Cell(kind="time", text=str(value))


def _json(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    if whole:
        return Cell(kind="code", text=json.dumps(value, ensure_ascii=False, indent=2))
    text = json.dumps(value, ensure_ascii=False)
    short = text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
    return Cell(kind="text", text=short, title=text[:2000])


def _bytes(value: Any, zone: ZoneInfo, whole: bool) -> Cell:
    return Cell(kind="text", text=f"{len(str(value)) * 3 // 4} bytes")


_CELLS: dict[Kind, Callable[[Any, ZoneInfo, bool], Cell]] = {
    Kind.TEXT: _text,
    Kind.INT: _number,
    Kind.FLOAT: _number,
    Kind.BOOL: _bool,
    Kind.DECIMAL: _number,
    Kind.DATETIME: _datetime,
    Kind.DATE: _plain_time,
    Kind.TIME: _plain_time,
    Kind.UUID: _text,
    Kind.BYTES: _bytes,
    Kind.JSON: _json,
}


def group_digits(text: str) -> str:
    """The digits before the point in groups of three, for eyes alone.

    >>> group_digits("-1234567.80")
    '-1,234,567.80'
    """
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, rest = digits.partition(".")
    if not whole.isdigit() or not whole.isascii():
        return text
    return f"{sign}{int(whole):,}{point}{rest}" if len(whole) < 1000 else text


def is_number(field: FieldMeta) -> bool:
    """Whether its column is aligned at the right."""
    return field.kind in (Kind.INT, Kind.FLOAT, Kind.DECIMAL) and field.enum is None


def as_text(value: Any) -> str:
    """A value for a diff: JSON where it is no plain text."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, Mapping | list) else None)
