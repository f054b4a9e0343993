"""Values → what a page shows of them, by the kind of the field."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import locale_rules

if TYPE_CHECKING:
    from maniflex.admin.widgets import FileItem


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
