"""Texts in a JSON body that no Unicode text is: what the client is told about them."""

from __future__ import annotations

import pytest

from maniflex._json import loads
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
