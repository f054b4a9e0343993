"""A fixed part of Markdown → markup: headings, lists, quotes, code, bold, emphasis, links. No HTML passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from markupsafe import Markup, escape

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
