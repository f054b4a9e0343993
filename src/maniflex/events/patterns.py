"""Patterns of event types: `invoice.*`, `*.created`, `*`; the one grammar for groups, buses and webhooks.

`*` stands for one or more characters, dots included, so `invoice.*` matches `invoice.created` and
`invoice.line.created`, and not `invoice`. A pattern has at most three of them; there is no other wildcard.

>>> matches("invoice.*", "invoice.line.created"), matches("invoice.*", "invoice")
(True, False)
>>> covers("invoice.*", "invoice.created"), covers("invoice.*", "*")
(True, False)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache

LONGEST = 200
MOST_STARS = 3
_TYPE = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_PATTERN = re.compile(r"[A-Za-z0-9_.*-]+")
_DOTS = re.compile(r"^\.|\.\.|\.$")


def is_type(text: object) -> bool:
    """Whether it is a type that an event of an application may have: segments joined by dots."""
    return isinstance(text, str) and len(text) <= LONGEST and _TYPE.fullmatch(text) is not None


def type_problem(text: object) -> str | None:
    """What is wrong with a type, as the end of a sentence about it."""
    if is_type(text):
        return None
    return (
        "is no type of an event: segments of letters, digits, _ and - joined by dots, such as"
        f" order.created, of at most {LONGEST} characters"
    )


def pattern_problem(pattern: object) -> str | None:
    """What is wrong with a pattern, as the end of a sentence about it."""
    if not isinstance(pattern, str) or not pattern:
        return "is no text such as 'order.*'"
    if len(pattern) > LONGEST:
        return f"is longer than {LONGEST} characters"
    if not _PATTERN.fullmatch(pattern):
        return "has characters beside letters, digits, dots, _, - and *"
    if pattern.count("*") > MOST_STARS:
        return f"has more than {MOST_STARS} stars"
    if _DOTS.search(pattern):
        return "has an empty segment"
    return None


@lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".+".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def matches(pattern: str, type: str) -> bool:
    """Whether a well-formed pattern matches a type."""
    if "*" not in pattern:
        return pattern == type
    return pattern == "*" or _expression(pattern).fullmatch(type) is not None


def matches_any(patterns: Iterable[str], type: str) -> bool:
    """Whether one of the patterns matches a type."""
    return any(matches(pattern, type) for pattern in patterns)


def matcher(patterns: Collection[str]) -> Callable[[str], bool]:
    """What tells whether one of the patterns matches a type; remembers the types it was asked about."""
    if "*" in patterns:
        return lambda type: True
    exact = frozenset(pattern for pattern in patterns if "*" not in pattern)
    others = [_expression(pattern).fullmatch for pattern in patterns if "*" in pattern]
    if not others:
        return exact.__contains__

    @lru_cache(maxsize=1024)
    def is_match(type: str) -> bool:
        return type in exact or any(match(type) is not None for match in others)

    return is_match


def covers(allowed: str, wanted: str) -> bool:
    """Whether everything that `wanted` can match is matched by `allowed`.

    Each star of `wanted` is one or more characters that nobody knows, so only stars of `allowed` can stand
    for it.
    """
    return _covers(allowed, wanted)


@lru_cache(maxsize=4096)
def _covers(allowed: str, wanted: str) -> bool:
    # `reach` holds the places of `allowed` that the characters of `wanted` so far can have led to. A star
    # is the place itself and stays; a star of `wanted` behaves like a character that equals no other.
    reach = {0}
    for character in wanted:
        after: set[int] = set()
        for place in reach:
            if place < len(allowed) and allowed[place] == "*":
                after |= {place, place + 1}  # it may stand for more, or is done
            elif place < len(allowed) and allowed[place] == character != "*":
                after.add(place + 1)
        reach = after
    return len(allowed) in reach


def read_patterns(patterns: object) -> tuple[list[str], list[str]]:
    """The patterns of an argument, and what is wrong with it, one sentence each."""
    if isinstance(patterns, str):
        patterns = (patterns,)
    if not isinstance(patterns, Iterable):
        return [], [f"{patterns!r} is no list of patterns such as 'order.*'"]
    texts = list(dict.fromkeys(patterns))
    problems = [
        f"the pattern {text!r} {problem}" for text in texts if (problem := pattern_problem(text)) is not None
    ]
    return (texts, []) if not problems else ([], problems)
