"""The pattern of a field → the `pattern` of its control, where that means the same to a browser.

A field's pattern may match anywhere in the text; that of a control is JavaScript's, with the flag `v`, and
has to match the whole text. What the two read differently (`\\d`, `\\w`, `\\b`, flags, look-around, names)
is left to the server.

>>> html_pattern("^[a-z0-9-]+$"), html_pattern("@"), html_pattern(r"^\\d+$")
('[a-z0-9\\\\-]+', '[^]*(?:@)[^]*', None)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\})\??(?![*+?{])")
_CLASS = re.compile(r"\[(\^?)((?:\\[^\w\s]|[^\\\[\]])+)\]")
_ITEM = re.compile(r"\\(.)|(.)", re.DOTALL)
# These stand for themselves in a class of JavaScript only behind a backslash.
_PUNCTUATION = frozenset("()[]{}/-\\|&!#%*+,.:;<=>?@^`~$")
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_EVERYTHING = "[^]*"


class _Untranslatable(Exception):
    """It means something else in JavaScript, or nothing."""


def html_pattern(pattern: str) -> str | None:
    """The same for a control, or None where there is no such pattern."""
    is_start, is_end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[is_start : len(pattern) - is_end]
    try:
        tokens = list(_tokens(inner))
    except _Untranslatable:
        return None
    body = "".join(tokens)
    has_choice = any(token == "|" and not depth for token, depth in _with_depth(tokens))
    if is_start and is_end and not has_choice:
        return body
    if (is_start or is_end) and has_choice:
        return None  # `^a|b$`: each anchor belongs to one of the two
    return f"{'' if is_start else _EVERYTHING}(?:{body}){'' if is_end else _EVERYTHING}"


def _with_depth(tokens: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each part with the number of groups around it."""
    depth = 0
    for token in tokens:
        depth += token in ("(", "(?:")
        depth -= token == ")"
        yield token, depth


def _tokens(text: str) -> Iterator[str]:
    """The parts of a pattern, each as JavaScript writes it."""
    place, can_repeat = 0, False
    while place < len(text):
        letter = text[place]
        if can_repeat and (repeat := _QUANTIFIER.match(text, place)):
            yield repeat[0]
            place, can_repeat = repeat.end(), False
            continue
        if letter == "[" and (group := _CLASS.match(text, place)):
            yield f"[{group[1]}{_class_items(group[2])}]"
            place, can_repeat = group.end(), True
            continue
        if letter == "\\" and text[place + 1 : place + 2] in _SYNTAX | {"-"}:
            yield text[place + 1] if text[place + 1] == "-" else text[place : place + 2]
            place, can_repeat = place + 2, True
            continue
        if letter == "(":
            opening = "(?:" if text.startswith("(?:", place) else "("
            if opening == "(" and text.startswith("(?", place):
                raise _Untranslatable
            yield opening
            place, can_repeat = place + len(opening), False
            continue
        if letter in _SYNTAX - set(".)|/"):
            raise _Untranslatable
        yield "[^\\n]" if letter == "." else letter
        place, can_repeat = place + 1, letter != "|"


def _class_items(text: str) -> str:
    """What stands between brackets; a `-` between two letters is a range, any other stands for itself."""
    if any(pair in text for pair in ("&&", "--", "~~")):
        raise _Untranslatable  # of several sets, to the server
    letters = [(match[1] or match[2], match[1] is not None) for match in _ITEM.finditer(text)]
    parts: list[str] = []
    place = 0
    while place < len(letters):
        first, _ = letters[place]
        if place + 2 < len(letters) and letters[place + 1] == ("-", False):
            parts.append(f"{_escape(first)}-{_escape(letters[place + 2][0])}")
            place += 3
        else:
            parts.append(_escape(first))
            place += 1
    return "".join(parts)


def _escape(letter: str) -> str:
    return f"\\{letter}" if letter in _PUNCTUATION else letter
