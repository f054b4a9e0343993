"""Two texts against each other: what stayed, what went and what came."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

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
