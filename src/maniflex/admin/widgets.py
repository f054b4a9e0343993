"""Fields → controls of a form and back, by the kind of the field.

A control holds text. `write` makes the text of a value, `read` the value of a text; a control whose text
means the same as that of the stored value was not touched, and its field is not sent.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from maniflex._json import JsonFault, NotJson
from maniflex._json import read_text as read_json
from maniflex.admin.cells import local_time
from maniflex.admin.texts import Texts
from maniflex.model.meta import FieldMeta, Kind

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile

    from maniflex.admin.file_fields import FileItem
    from maniflex.admin.inlines import InlineChange


_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
FOLDS = ("first", "second")


class UnreadableText(ValueError):
    """A text that is no value of its field; `message` is for the person who typed it."""

    def __init__(self, message: str, folds: tuple[tuple[str, str], ...] = (), *, part: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.part = part  # of a field that has parts: the one it is about
        self.folds = folds  # of a time that there is twice: which of the two is meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What reading and writing depends on besides the value."""

    zone: ZoneInfo
    texts: Texts
    fold: str = ""  # of a time that there is twice


@dataclass(frozen=True, slots=True)
class Widget:
    """The control of a kind of field."""

    kind: str
    write: Callable[[Any, Setting], str]
    read: Callable[[str, Setting], Any]
    attributes: dict[str, str] = field(default_factory=dict)


def _write_text(value: Any, setting: Setting) -> str:
    return str(value)


def _read_text(text: str, setting: Setting) -> Any:
    return text


def _read_int(text: str, setting: Setting) -> Any:
    plain = text.strip().replace("_", "x")
    return int(plain) if _INTEGER.fullmatch(plain) and len(plain) < 30 else text.strip()


def _read_float(text: str, setting: Setting) -> Any:
    plain = text.strip()
    value = float(plain) if _NUMBER.fullmatch(plain) else math.nan
    return value if math.isfinite(value) else plain


def _write_bool(value: Any, setting: Setting) -> str:
    return "true" if value else "false"


def _read_bool(text: str, setting: Setting) -> Any:
    return text == "true"


def _write_datetime(value: Any, setting: Setting) -> str:
    local = local_time(datetime.fromisoformat(str(value)), setting.zone)
    return local.replace(tzinfo=None, microsecond=0).isoformat(
        timespec="seconds" if local.second else "minutes"
    )


def _read_datetime(text: str, setting: Setting) -> Any:
    try:
        return _instant_of(datetime.fromisoformat(text.strip()), setting)
    except (ValueError, OverflowError) as error:
        if isinstance(error, UnreadableText):
            raise
        return text.strip()  # which the API refuses in its own words


def _instant_of(local: datetime, setting: Setting) -> str:
    if local.tzinfo is not None:
        return local.astimezone(UTC).isoformat()
    first, second = (local.replace(tzinfo=setting.zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        if first.astimezone(UTC).astimezone(setting.zone).replace(tzinfo=None) != local:
            raise UnreadableText(setting.texts("no_such_time", zone=setting.zone.key))
        if setting.fold not in FOLDS:
            options = tuple(
                (name, f"{local:%H:%M} {moment.tzname()}")
                for name, moment in zip(FOLDS, (first, second), strict=True)
            )
            raise UnreadableText(setting.texts("time_twice", zone=setting.zone.key), options)
    moment = second if setting.fold == "second" else first
    return moment.astimezone(UTC).isoformat()


def _write_date(value: Any, setting: Setting) -> str:
    return str(value)[:10]


def _write_time(value: Any, setting: Setting) -> str:
    text = str(value)
    return text[:5] if text[5:8] in ("", ":00") else text[:8]


def _read_time(text: str, setting: Setting) -> Any:
    plain = text.strip()
    return f"{plain}:00" if re.fullmatch(r"[0-9]{2}:[0-9]{2}", plain) else plain


def _write_json(value: Any, setting: Setting) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _read_json(text: str, setting: Setting) -> Any:
    try:
        return read_json(text)
    except NotJson as problem:
        if problem.fault is JsonFault.NUMBER:
            raise UnreadableText(setting.texts("json_number", number=problem.detail)) from None
        what = problem.detail if problem.fault is JsonFault.SYNTAX else str(problem)
        where = {"line": problem.line, "column": problem.column, "problem": what}
        raise UnreadableText(setting.texts("json_syntax", **where)) from None


def _read_bytes(text: str, setting: Setting) -> Any:
    try:
        base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise UnreadableText(setting.texts("no_base64")) from None
    return "".join(text.split())


WIDGETS: dict[Kind, Widget] = {
    Kind.TEXT: Widget("text", _write_text, _read_text),
    Kind.INT: Widget("text", _write_text, _read_int, {"inputmode": "numeric"}),
    Kind.FLOAT: Widget("text", _write_text, _read_float, {"inputmode": "decimal"}),
    Kind.BOOL: Widget("bool", _write_bool, _read_bool),
    Kind.DECIMAL: Widget("text", _write_text, lambda text, setting: text.strip(), {"inputmode": "decimal"}),
    Kind.DATETIME: Widget("datetime-local", _write_datetime, _read_datetime, {"step": "1"}),
    Kind.DATE: Widget("date", _write_date, lambda text, setting: text.strip()),
    Kind.TIME: Widget("time", _write_time, _read_time, {"step": "1"}),
    Kind.UUID: Widget("text", _write_text, lambda text, setting: text.strip(), {"spellcheck": "false"}),
    Kind.BYTES: Widget("code", _write_text, _read_bytes),
    Kind.JSON: Widget("code", _write_json, _read_json),
}


def means_the_same(field_meta: FieldMeta, text: str, other: str, setting: Setting) -> bool:
    """Whether two texts of a control stand for one value; a browser may write it another way."""
    if text == other:
        return True
    if field_meta.kind is Kind.TEXT and field_meta.enum is None:
        return text.replace("\r\n", "\n") == other.replace("\r\n", "\n")
    if field_meta.kind in (Kind.DATETIME, Kind.DATE, Kind.TIME):
        return bool(text) and bool(other) and _moment(text) == _moment(other)
    if field_meta.kind in (Kind.JSON, Kind.BYTES):
        return text.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
    return text.strip() == other.strip()


def _moment(text: str) -> Any:
    for read in (datetime.fromisoformat, date.fromisoformat, time.fromisoformat):
        try:
            return read(text.strip())
        except ValueError:
            continue
    return text


# The controls of a form, and what was typed into them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control: `kind` chooses the markup."""

    kind: str
    name: str
    label: str
    place: str = ""  # of a row inside the form: `inline.<relation>.<index>`
    text: str = ""
    base_ids: str = ""  # of links: the ids that the form was opened with
    is_null: bool = False
    nullable: bool = False
    required: bool = False
    disabled: bool = False
    help: str = ""
    errors: Sequence[str] = ()
    options: Sequence[tuple[str, str]] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    folds: Sequence[tuple[str, str]] = ()
    zone: str = ""
    pick_url: str = ""
    pick_model: str = ""  # of the record that the control refers to
    pick_label: str = ""
    new_url: str = ""  # of a form for a record to refer to, for those who may make one
    new_label: str = ""
    file: FileItem | None = None  # that is there
    files: Sequence[FileItem] = ()  # of a list of files: those that are there
    multiple: bool = False
    can_be_empty: bool = False
    parts: Sequence[Control] = ()  # of a field that is a dataclass or a pydantic model

    @property
    def key(self) -> str:
        """What the control is called among all of its form."""
        return key_at(self.place, self.name)

    @property
    def input_name(self) -> str:
        """What a browser sends its text as."""
        return input_name(self.place, self.name)


def key_at(place: str, name: str) -> str:
    """The key of a control: the name of its field, behind that of the row it is in."""
    return f"{place}.{name}" if place else name


def input_name(place: str, name: str) -> str:
    """The name of a control: `f.<field>`, or `inline.<relation>.<index>.<field>`."""
    return f"{place}.{name}" if place else f"f.{name}"


@dataclass(slots=True)
class FormInput:
    """What a form holds: the values to send, and what cannot be read."""

    values: dict[str, Any] = field(default_factory=dict)  # by API name, those that were changed
    files: dict[str, list[UploadFile]] = field(default_factory=dict)
    links: dict[str, list[str]] = field(default_factory=dict)  # by relation, ids
    errors: dict[str, list[str]] = field(default_factory=dict)
    folds: dict[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    rows: list[InlineChange] = field(default_factory=list)
    newest_rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # of rows that others changed


def words_beside(name: str, message: str) -> str:
    """A message of the API where it stands beside its field, whose name it need not say again.

    >>> words_beside("title", 'field "title" is required')
    'is required'
    """
    return message.removeprefix(f'field "{name}" ')
