"""Texts in a JSON body that no Unicode text is: what the client is told about them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from maniflex._json import JsonFault, NotJson, loads, read_back, read_text
from maniflex.errors import InvalidJson

HALVES = [
    rb'{"a": "\ud800"}',
    rb'{"a": "\udc00"}',
    rb'{"a": "\ud800\u0041"}',
    rb'{"a": "\ud800", "b": "and enough behind it"}',
    rb'{"\ud83d": 1}',
    rb'["\ud83d", 1]',
]
TRUNCATED = [rb'{"a": "\ud800', rb'{"a": "\u0041', rb'{"a": "x', rb'["\u0041", ']


@pytest.mark.parametrize("body", HALVES)
@pytest.mark.parametrize("exact", [False, True])
def test_half_of_a_surrogate_pair_is_called_so(body: bytes, exact: bool) -> None:
    with pytest.raises(InvalidJson, match="not valid Unicode: half of a surrogate pair"):
        loads(body, exact=exact)


@pytest.mark.parametrize("body", TRUNCATED)
def test_a_body_that_ends_too_early_is_truncated(body: bytes) -> None:
    with pytest.raises(InvalidJson, match="truncated"):
        loads(body)


def test_a_whole_pair_is_one_character() -> None:
    assert loads(rb'["\ud83d\ude00"]') == ["\N{GRINNING FACE}"]


# -- what a person typed or a file holds


@pytest.mark.parametrize(
    ("text", "fault", "detail", "place"),
    [
        ('{"a": 1,\n "b" 2}', JsonFault.SYNTAX, "Expecting ':' delimiter", (2, 6)),
        ('{"a": 1', JsonFault.SYNTAX, "Expecting ',' delimiter", (1, 8)),
        ("[NaN]", JsonFault.NUMBER, "NaN", (1, 1)),
        ("[-Infinity]", JsonFault.NUMBER, "-Infinity", (1, 1)),
        ("[1e999]", JsonFault.NUMBER, "1e999", (1, 1)),
        (r'["\ud800"]', JsonFault.HALF, "", (1, 1)),
        ('["\ud800"]', JsonFault.HALF, "", (1, 1)),
        (r'["\u0000"]', JsonFault.NUL, "", (1, 1)),
        ("[" * 110 + "]" * 110, JsonFault.DEEP, "", (1, 1)),
        ("[" * 100_000, JsonFault.DEEP, "", (1, 1)),
        ('{"a": 1, "a": 2}', JsonFault.REPEATED, "'a'", (1, 1)),
    ],
)
def test_a_text_that_is_refused_says_why_and_where(
    text: str, fault: JsonFault, detail: str, place: tuple[int, int]
) -> None:
    with pytest.raises(NotJson, match=fault.value) as refused:
        read_text(text)

    problem = refused.value
    assert (problem.fault, problem.detail, (problem.line, problem.column)) == (fault, detail, place)


def test_a_text_is_read_as_a_body_is() -> None:
    assert read_text('{"a": [1, 1.5, "x"]}') == loads(b'{"a": [1, 1.5, "x"]}')
    assert read_text("[1.10]", exact=True) == [Decimal("1.10")]


def test_what_was_written_here_is_read_back_even_with_nul() -> None:
    assert read_back(r'["\u0000"]') == ["\0"]
    for text in ("[" * 100_000, "{", b"\xff", "NaN"):
        with pytest.raises(ValueError, match=r"JSON|truncated|codec|recursion|byte"):
            read_back(text)
