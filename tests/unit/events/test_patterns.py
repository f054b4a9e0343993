"""The one grammar of patterns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniflex.events import patterns

TYPES = ["a", "a.b", "a.b.c", "b", "a.c", "ab", "a.bb", "c.b", "b.a.b"]


@pytest.mark.parametrize(
    ("pattern", "type", "is_match"),
    [
        ("invoice.created", "invoice.created", True),
        ("invoice.created", "invoice_created", False),
        ("invoice.*", "invoice.created", True),
        ("invoice.*", "invoice.line.created", True),
        ("invoice.*", "invoice", False),
        ("invoice.*", "invoices.created", False),
        ("*.created", "invoice.created", True),
        ("*.created", "created", False),
        ("*", "anything", True),
        ("inv*.c*d", "invoice.line.created", True),
        ("a*a", "aa", False),
    ],
)
def test_a_star_stands_for_one_or_more_characters(pattern: str, type: str, is_match: bool) -> None:
    assert patterns.matches(pattern, type) is is_match
    assert patterns.matcher([pattern])(type) is is_match


@pytest.mark.parametrize(
    "pattern", ["", "a b", "a..b", ".a", "a.", "*.*.*.*", "a.>", "a#", "ä", "a\n", 7, None, "a" * 201]
)
def test_what_is_no_pattern_is_told(pattern: object) -> None:
    texts, problems = patterns.read_patterns([pattern])

    assert texts == []
    assert len(problems) == 1
    assert repr(pattern) in problems[0]


@pytest.mark.parametrize(
    ("allowed", "wanted", "is_covered"),
    [
        ("invoice.*", "invoice.created", True),
        ("invoice.*", "invoice.*", True),
        ("invoice.*", "*", False),
        ("invoice.*", "inv*", False),
        ("*", "*", True),
        ("*", "a.*.b", True),
        ("*.created", "invoice.*.created", True),
        ("a.*.c", "a.*", False),
        ("a*", "a*b*", True),
        ("a.b", "a.*", False),
    ],
)
def test_one_pattern_covers_another(allowed: str, wanted: str, is_covered: bool) -> None:
    assert patterns.covers(allowed, wanted) is is_covered


ONE = st.text(alphabet="ab.*", min_size=1, max_size=5).filter(
    lambda text: patterns.pattern_problem(text) is None
)
WORDS = ["".join(letters) for size in range(1, 7) for letters in itertools.product("ab.", repeat=size)]


@given(ONE, ONE)
def test_what_is_covered_matches_nothing_else(allowed: str, wanted: str) -> None:
    strangers = [
        word for word in WORDS if patterns.matches(wanted, word) and not patterns.matches(allowed, word)
    ]

    assert not (patterns.covers(allowed, wanted) and strangers)
    assert patterns.covers(allowed, wanted) or "*" in wanted or strangers
