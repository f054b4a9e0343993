"""Repeated keys, numbers and values of a JSON body: what is refused, and that nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniflex._json import as_floats, loads, refuse_long_integers
from maniflex.errors import BodyTooLarge, InvalidJson

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(':"\\,[]{}aé', max_size=4)
KEYS = st.text(":ab", max_size=2)
PAIRS = object()


def _values(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(KEYS, parts), max_size=4).map(lambda items: (PAIRS, items))
    return st.lists(parts, max_size=4) | pairs


def _text(value: Any, escape: bool) -> str:
    """The value as JSON text; objects are pairs, so that a key may come twice."""
    if isinstance(value, tuple) and value and value[0] is PAIRS:
        pairs = [f"{_text(key, escape)}: {_text(part, escape)}" for key, part in value[1]]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(part, escape) for part in value) + "]"
    text = json.dumps(value)
    return text.replace(":", "\\u003a") if escape and isinstance(value, str) else text


def _repeats(value: Any) -> bool:
    if isinstance(value, tuple):
        keys = [key for key, _ in value[1]]
        return len(set(keys)) < len(keys) or any(_repeats(part) for _, part in value[1])
    return isinstance(value, list) and any(map(_repeats, value))


@given(st.recursive(SCALARS, _values, max_leaves=12), st.booleans())
def test_a_key_that_comes_twice_is_refused_and_no_other_body_is(value: Any, escape: bool) -> None:
    text = _text(value, escape)

    if _repeats(value):
        with pytest.raises(InvalidJson, match="given twice"):
            loads(text.encode())
    else:
        assert loads(text.encode()) == json.loads(text)


def _amount(value: Any) -> int:
    """How many values there are, at any depth."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_amount, parts))


@given(st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=5), max_leaves=20))
def test_as_many_values_as_allowed_are_taken_and_not_one_more(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False).encode() + b" " * 200
    amount = _amount(value)

    assert loads(text, most=amount) == value
    if amount > 1:
        with pytest.raises(BodyTooLarge, match="more than"):
            loads(text, most=amount - 1)


@pytest.mark.parametrize("text", ["a," * 300_000, "[{" * 300_000, '\\",' * 200_000, "\\\\" * 300_000 + ","])
def test_commas_and_brackets_of_a_text_are_not_values(text: str) -> None:
    body = b'{"a": "' + text.encode() + b'", "b": [1, 2]}'

    assert loads(body)["b"] == [1, 2]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("number", ["1e999", "1e" + "9" * 30, "-1e999999999999999999999", "9" * 5000])
def test_a_number_no_type_can_hold_is_the_client_s_mistake(number: str, exact: bool) -> None:
    body = f'{{"a": {number}}}'.encode()

    if exact and number == "1e999":
        with pytest.raises(InvalidJson, match="out of range"):
            as_floats(loads(body, exact=True))
    else:
        with pytest.raises(InvalidJson, match="out of range"):
            loads(body, exact=exact)


@pytest.mark.parametrize("padding", [0, 100_000])
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_long_integer_is_found_in_small_and_large_bodies(number: int, padding: int) -> None:
    body = json.dumps({"a": [{"b": [number]}]}).encode() + b" " * padding
    value = loads(body)

    with pytest.raises(InvalidJson, match="beyond 64 bits"):
        refuse_long_integers(body, value)
    refuse_long_integers(body, {"a": [2**63 - 1, -(2**63), True, "9" * 30]})


def test_fractions_become_floats_at_every_depth() -> None:
    value = loads(b'{"a": [1.5, {"b": 2.25, "c": [[0.125]]}], "d": 1, "e": "x"}', exact=True)

    plain = as_floats(value)

    assert plain == {"a": [1.5, {"b": 2.25, "c": [[0.125]]}], "d": 1, "e": "x"}
    assert type(plain["a"][0]) is type(plain["a"][1]["c"][0][0]) is float
