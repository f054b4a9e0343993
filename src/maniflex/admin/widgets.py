"""Values as pages show them, and controls of forms, by the kind of the field.

A control holds text. `write` makes the text of a value, `read` the value of a text; a control whose text
means the same as that of the stored value was not touched, and its field is not sent.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from maniflex._json import JsonFault, NotJson
from maniflex._json import read_text as read_json
from maniflex.admin.list_query import read_number
from maniflex.admin.texts import Texts
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import locale_rules

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile

    from maniflex.admin.inlines import InlineChange
    from maniflex.admin.site import ModelSite
    from maniflex.admin.visit import Visit
    from maniflex.files.store import StoredFile


# Values → what a page shows of them, by the kind of the field.


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
    if isinstance(value, str) and locale_rules(field) is not None:
        return _text(value, zone, whole)
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


# A fixed part of Markdown → markup: headings, lists, quotes, code, bold, emphasis, links. No HTML passes.

# Each piece has a most: an unclosed one is looked for from every letter, and a long line of them would
# take the square of its length.
# Each piece has a most: an unclosed one is looked for from every letter, and a long line of them would
# take the square of its length.
_INLINE = re.compile(
    r"`(?P<code>[^`\n]{1,1000})`|\*\*(?P<bold>[^*\n]{1,1000})\*\*|\*(?P<em>[^*\n]{1,1000})\*"
    r"|\[(?P<label>[^\[\]\n]{1,300})\]\((?P<url>(?:https?://|mailto:)[^\s()<>\"']{1,2000})\)"
)
_HEADING = re.compile(r"(#{1,4}) +(.+)")
_ITEM = re.compile(r"(?:[-*]|[0-9]{1,4}\.) +(.*)")
_FENCE = "```"


def render_markdown(text: str) -> Markup:
    """The markup of a text; what is no Markdown of this part stays as it was typed."""
    return Markup("\n").join(_blocks(text.replace("\r\n", "\n").split("\n")))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if line.startswith(_FENCE):
            while end < len(lines) and not lines[end].startswith(_FENCE):
                end += 1
            yield Markup("<pre><code>{}</code></pre>").format("\n".join(lines[at + 1 : end]))
            end += 1
        elif heading := _HEADING.fullmatch(line):
            level = len(heading[1]) + 2  # below those of the page
            yield Markup(f"<h{level}>{{}}</h{level}>").format(_inline(heading[2]))
        elif _ITEM.fullmatch(line):
            end = _run_of(lines, at, lambda one: _ITEM.fullmatch(one) is not None)
            yield _list_of(lines[at:end])
        elif line.startswith(">"):
            end = _run_of(lines, at, lambda one: one.startswith(">"))
            quote = Markup("<br>").join(_inline(one[1:].strip()) for one in lines[at:end])
            yield Markup("<blockquote>{}</blockquote>").format(quote)
        elif line.strip():
            end = _run_of(lines, at, lambda one: bool(one.strip()) and not _starts_block(one))
            yield Markup("<p>{}</p>").format(Markup("<br>").join(map(_inline, lines[at:end])))
        at = end


def _run_of(lines: list[str], start: int, belongs: Callable[[str], bool]) -> int:
    end = start + 1
    while end < len(lines) and belongs(lines[end]):
        end += 1
    return end


def _starts_block(line: str) -> bool:
    return line.startswith((_FENCE, ">")) or bool(_HEADING.fullmatch(line) or _ITEM.fullmatch(line))


def _list_of(lines: list[str]) -> Markup:
    tag = "ol" if lines[0][0].isdigit() else "ul"
    texts = [match[1] for line in lines if (match := _ITEM.fullmatch(line))]
    items = Markup("").join(Markup("<li>{}</li>").format(_inline(one)) for one in texts)
    return Markup(f"<{tag}>{{}}</{tag}>").format(items)


def _inline(text: str) -> Markup:
    parts, at = [], 0
    for match in _INLINE.finditer(text):
        parts.append(escape(text[at : match.start()]))
        if match["code"] is not None:
            parts.append(Markup("<code>{}</code>").format(match["code"]))
        elif match["bold"] is not None:
            parts.append(Markup("<strong>{}</strong>").format(match["bold"]))
        elif match["em"] is not None:
            parts.append(Markup("<em>{}</em>").format(match["em"]))
        else:
            link = Markup('<a href="{}" rel="noreferrer noopener">{}</a>')
            parts.append(link.format(match["url"], match["label"]))
        at = match.end()
    return Markup("").join([*parts, escape(text[at:])])


# Two texts against each other: what stayed, what went and what came.


_LONG = 20_000
_MOST_PAIRS = 100_000


def diff_words(old: str, new: str, *, by_line: bool = False) -> list[tuple[str, str]]:
    """What stayed (`same`), went (`del`) and came (`ins`), word by word; long texts line by line."""
    by_line = by_line or len(old) + len(new) > _LONG
    before = old.splitlines(keepends=True) if by_line else old.split(" ")
    after = new.splitlines(keepends=True) if by_line else new.split(" ")
    glue = "" if by_line else " "
    start = _common_start(before, after)
    end = _common_start(before[start:][::-1], after[start:][::-1])
    middle = before[start : len(before) - end], after[start : len(after) - end]
    parts = _join("same", before[:start], glue)
    for tag, i, j, k, m in _changes(*middle):
        if tag == "equal":
            parts += _join("same", middle[0][i:j], glue)
            continue
        parts += _join("del", middle[0][i:j], glue)
        parts += _join("ins", middle[1][k:m], glue)
    return parts + _join("same", before[len(before) - end :], glue)


def _join(kind: str, words: Sequence[str], glue: str) -> list[tuple[str, str]]:
    return [(kind, glue.join(words) + glue)] if words else []


def _common_start(before: Sequence[str], after: Sequence[str]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )


def _changes(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    # The matcher looks at every pair of equal words, many times over: a text that repeats a few words would
    # hold up the server for minutes.
    counts = Counter(after)
    pairs = sum(count * counts[word] for word, count in Counter(before).items())
    if pairs > _MOST_PAIRS:
        return [("replace", 0, len(before), 0, len(after))]
    return list(difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes())


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
    parts: Sequence[Control] = ()  # of a field that is a dataclass or a pydantic model; or translations
    new_text: tuple[str, str] | None = None  # of translations: what was typed for one more language

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


# Files in forms and on pages: one in a field, or several in an order.
#
# The rows of a list are called `files.<field>.<index>.key`, `.place` and `._delete`; new files come behind
# those that are there already.


_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif")
_MOST_PLACES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileItem:
    """A file that a record has."""

    name: str
    url: str
    image: str  # where it can be shown
    size: str = ""
    key: str = ""
    place: str = ""
    is_deleted: bool = False


def is_file_list(field_meta: FieldMeta) -> bool:
    """Whether a field holds several files."""
    return "file" in field_meta.extra and field_meta.kind is Kind.JSON


def file_item(
    visit: Visit, site: ModelSite, record_id: str, field_meta: FieldMeta, key: str, index: int
) -> FileItem:
    """One file of a record, by its place in the field."""
    file = stored_file(visit, key)
    name = key.partition("?")[0].rpartition("/")[2]
    query = {"index": index} if is_file_list(field_meta) else {}
    parts = (record_id or "-", "file", field_meta.api)
    url = visit.url(site.table, *parts, **query)
    image = url if name.lower().endswith(_PICTURES) else ""
    size = "" if file is None or file.size is None else size_text(file.size)
    return FileItem(name=name, url=url, image=image, size=size, key=key, place=str(index + 1))


def file_items(
    visit: Visit, site: ModelSite, record: Mapping[str, Any], field_meta: FieldMeta, *, is_typed: bool = False
) -> list[FileItem]:
    """The files of a list, in their order; of a form that was sent, as they were arranged."""
    keys = record.get(field_meta.api)
    if not is_file_list(field_meta) or not isinstance(keys, list):
        return []
    record_id = str(record.get("id", ""))
    items = [file_item(visit, site, record_id, field_meta, str(key), index) for index, key in enumerate(keys)]
    if not is_typed:
        return items
    typed_rows = {row.key: row for row in _typed_rows(visit, field_meta.api)}
    return [
        FileItem(
            name=one.name,
            url=one.url,
            image=one.image,
            size=one.size,
            key=one.key,
            place=typed_rows[one.key].place if one.key in typed_rows else one.place,
            is_deleted=one.key in typed_rows and typed_rows[one.key].is_deleted,
        )
        for one in items
    ]


def read_files(
    visit: Visit, field_meta: FieldMeta, base_values: Mapping[str, Any] | None, form_input: FormInput
) -> None:
    """What a form changes in the files of a field."""
    name = field_meta.api
    uploads: list[Any] = [
        one for one in visit.form.getlist(f"f.{name}") if not isinstance(one, str) and one.filename
    ]
    if uploads:
        form_input.files[name] = uploads
    if not is_file_list(field_meta):
        if not uploads and visit.form.get(f"null.{name}"):
            form_input.values[name] = None
        return
    rows = [row for row in _typed_rows(visit, name) if not row.is_deleted]
    keys = [row.key for row in sorted(rows, key=_place_of)]
    if uploads or keys != ((base_values or {}).get(name) or []):
        form_input.values[name] = keys


def _typed_rows(visit: Visit, name: str) -> Sequence[FileItem]:
    prefix = f"files.{name}."
    indexes = {key[len(prefix) :].partition(".")[0] for key in visit.form if key.startswith(prefix)}
    numbers = sorted(number for number in map(read_number, indexes) if number is not None)
    return [
        FileItem(
            name="",
            url="",
            image="",
            key=visit.form_text(f"{prefix}{number}.key"),
            place=visit.form_text(f"{prefix}{number}.place"),
            is_deleted=bool(visit.form_text(f"{prefix}{number}._delete")),
        )
        for number in numbers[:_MOST_PLACES]
        if visit.form_text(f"{prefix}{number}.key")
    ]


def _place_of(row: FileItem) -> int:
    """Where a row belongs; one without a number goes behind."""
    number = read_number(row.place.strip())
    return _MOST_PLACES if number is None else number


# What is known of the files that records name: looked up once for a page, by the keys the API showed.


_MOST_PARTS = 12  # of an address, in which the key is looked for
_UNITS = ("KB", "MB", "GB", "TB")


async def note_files(visit: Visit, fields: Sequence[FieldMeta], records: Iterable[Mapping[str, Any]]) -> None:
    """Look up the files of these records in one statement, for `stored_file`."""
    desk = visit.panel.runtime.file_desk
    names = [field.api for field in fields if "file" in field.extra and not field.secret]
    if desk is None or not names:
        return
    values = [value for record in records for name in names for value in _values(record.get(name))]
    keys = {key for value in values for key in _keys_in(value)}
    if keys:
        visit.stored_files.update(await desk.rows.find_all(keys))


def stored_file(visit: Visit, value: str) -> StoredFile | None:
    """The file that a field names, by its key or by an address that ends in its key."""
    return next((visit.stored_files[key] for key in _keys_in(value) if key in visit.stored_files), None)


def _values(value: Any) -> list[str]:
    return (
        [value] if isinstance(value, str) else [str(one) for one in value] if isinstance(value, list) else []
    )


def _keys_in(value: str) -> list[str]:
    """What may be the key: the value itself, or of an address each end of its path, the longest first."""
    if not value.startswith(("http://", "https://", "/")):
        return [value]
    try:
        path = unquote(urlsplit(value).path)
    except ValueError:  # no address after all
        return []
    parts = path.strip("/").split("/")[-_MOST_PARTS:]
    return ["/".join(parts[start:]) for start in range(len(parts))]


def size_text(size: int) -> str:
    """A number of bytes for people, in the units that `max_size` is declared in.

    >>> [size_text(n) for n in (0, 1023, 48_210, 2 * 1024**2, 1024**2 * 3 // 2, 1024**5)]
    ['0 bytes', '1023 bytes', '47 KB', '2 MB', '1.5 MB', '1024 TB']
    """
    if size < 1024:
        return f"{size} byte{'' if size == 1 else 's'}"
    amount = float(size)
    for unit in _UNITS:
        amount /= 1024
        if round(amount, 1) < 1024 or unit == _UNITS[-1]:
            break
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}" if amount < 10 else f"{amount:.0f} {unit}"
