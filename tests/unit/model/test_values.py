"""Which values each kind of column takes, from a body and from code alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniflex.errors import ValidationFailed
from maniflex.model.base import Model
from maniflex.model.field import LocaleString, field
from maniflex.model.validate import Validator
from tests.kit.declarations import details_of, validator_of


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    label: str = ""


class Box(Model):
    text: str | None
    whole: int | None
    real: float | None
    flag: bool | None
    exact: Decimal | None
    instant: datetime | None
    day: date | None
    clock: time | None
    key: UUID | None
    blob: bytes | None
    choice: Literal["a", "b"] | None
    number: Literal[1, 2] | None
    colour: Colour | None
    level: Level | None
    anything: dict[str, Any] | None
    items: list[int] | None
    point: Point | None
    points: dict[str, Point] | None
    names: LocaleString | None


BOX: Validator = validator_of(Box)
NOON = datetime(2024, 5, 31, 12, tzinfo=UTC)
KEY = UUID("01890000-0000-7000-8000-000000000000")


@pytest.mark.parametrize(
    ("name", "given_value", "taken"),
    [
        ("text", "", ""),
        ("text", "مرحبا 👋", "مرحبا 👋"),
        ("whole", 2**63 - 1, 2**63 - 1),
        ("whole", -(2**63), -(2**63)),
        ("real", 3, 3.0),
        ("real", 1.5, 1.5),
        ("real", Decimal("1.5"), 1.5),
        ("flag", False, False),
        ("exact", "0.10", Decimal("0.10")),
        ("exact", 7, Decimal(7)),
        ("exact", "-1e3", Decimal("-1e3")),
        ("exact", "-0", Decimal(0)),
        ("instant", "2024-05-31T12:00:00Z", NOON),
        ("instant", "2024-05-31t12:00:00z", NOON),
        ("instant", "2024-05-31 14:00:00+02:00", NOON),
        ("instant", "2024-05-31T12:00:00", NOON),
        ("instant", "2024-05-31T12:00", NOON),
        ("instant", "2024-05-31T12:00:00.000000000Z", NOON),
        ("instant", datetime(2024, 5, 31, 12), NOON),
        ("instant", datetime(2024, 5, 31, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
        ("day", "2024-05-31", date(2024, 5, 31)),
        ("day", date(2024, 5, 31), date(2024, 5, 31)),
        ("clock", "09:30", time(9, 30)),
        ("clock", "09:30:01.5", time(9, 30, 1, 500_000)),
        ("key", str(KEY), KEY),
        ("key", KEY, KEY),
        ("blob", "AP8=", b"\x00\xff"),
        ("blob", b"\x00", b"\x00"),
        ("choice", "a", "a"),
        ("number", 2, 2),
        ("colour", "red", Colour.RED),
        ("level", 1, Level.LOW),
        ("anything", {"a": [1, None, {"b": 1.5}]}, {"a": [1, None, {"b": 1.5}]}),
        ("items", [], []),
        ("point", {"x": 1}, Point(1)),
        ("point", Point(2, "b"), Point(2, "b")),
        ("points", {"a": {"x": 1}}, {"a": Point(1)}),
        ("names", {"en": "Red", "pt-BR": "Vermelho"}, LocaleString({"en": "Red", "pt-BR": "Vermelho"})),
    ],
)
def test_a_fitting_value_is_taken(name: str, given_value: Any, taken: Any) -> None:
    for changes in (
        BOX.patch({name: given_value}),
        BOX.patch_from_code({name: given_value}),
        vars(BOX.create({name: given_value})),
        vars(BOX.create_from_code({name: given_value})),
    ):
        assert changes[name] == taken
        assert type(changes[name]) is type(taken)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("text", [5, True, b"x", ["x"], {}]),
        ("whole", [True, "5", 5.0, 5.5, 2**63, -(2**63) - 1, Decimal(5), []]),
        ("real", [True, "1.5", float("nan"), float("inf"), Decimal("1e400"), 10**400]),
        ("flag", [0, 1, "true", "false", ""]),
        ("exact", [0.5, True, "", "x", "NaN", "Infinity", "1_000", "٣", "0x10", Decimal("NaN"), "1e1001"]),
        ("exact", ["1" * 1001, "0." + "1" * 1000, 10**1001, Decimal("1e99999"), "1e999999999999"]),
        ("instant", [0, 1717156800, 1.5, "1717156800", "20240531", "2024-05-31", "2024-02-30T00:00:00Z"]),
        (
            "instant",
            ["2024-05-31T24:30:00Z", "2024-05-31T12:00:00.1234567Z", "0001-01-01T00:00:00+14:00", ""],
        ),
        ("instant", [date(2024, 5, 31), True, "٢٠٢٤-05-31T12:00:00Z", "2024-W22-5T12:00"]),
        ("day", [0, "20240531", "2024-02-30", "2024-05-31T00:00:00", NOON, True]),
        ("clock", [0, "9:30", "25:00", "09:30Z", time(9, tzinfo=UTC), "093000"]),
        ("key", [5, "x", b"0123456789abcdef", True]),
        ("blob", [5, "not base64!", "AP8", "AP-_", ["AA=="]]),
        ("choice", ["c", "A", "", 1, ["a"], {}]),
        ("number", [True, 1.0, "1", 3]),
        ("colour", ["green", "RED", 1]),
        ("level", [True, 1.0, "1", 9]),
        ("anything", [[], "x", 5]),
        ("items", [{}, "12", ["1"], [True], [1.0]]),
        ("point", [{}, {"x": "1"}, {"x": True}, 5]),
        ("points", [{"a": {"x": "1"}}]),
        ("names", [{"en": 5}, {"": "x"}, {"e'); --": "x"}, "Red"]),
    ],
)
def test_any_other_value_is_refused_and_names_the_field(name: str, values: list[Any]) -> None:
    for value in values:
        for take in (BOX.create, BOX.patch, BOX.create_from_code, BOX.patch_from_code):
            with pytest.raises(ValidationFailed) as caught:
                take({name: value})
            assert all(path.split(".")[0] == name for path in details_of(caught)), value


@pytest.mark.parametrize(
    "value",
    [
        {"a": {1, 2}},
        {1: "a"},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": 2**63},
        {"a": "x\x00"},
        {"\x00": 1},
        {"a": "\ud800"},
        {"a": NOON},
        {"a": (1, 2)},
    ],
)
def test_code_cannot_store_what_json_cannot_say(value: Any) -> None:
    with pytest.raises(ValidationFailed) as caught:
        BOX.create_from_code({"anything": value})

    assert {path.split(".")[0] for path in details_of(caught)} == {"anything"}


def test_code_cannot_store_json_nested_without_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(101):
        deep = {"a": deep}

    with pytest.raises(ValidationFailed) as caught:
        BOX.patch_from_code({"anything": deep})

    assert details_of(caught) == {"anything": "json"}
    assert BOX.patch_from_code({"anything": deep["a"]["a"]})


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_code_cannot_store_text_a_database_refuses(text: str) -> None:
    for take in (BOX.create_from_code, BOX.patch_from_code):
        with pytest.raises(ValidationFailed) as caught:
            take({"text": text, "point": Point(1, text)})
        assert details_of(caught)["text"] == "text"


def test_text_hidden_inside_a_dataclass_is_looked_at_too() -> None:
    with pytest.raises(ValidationFailed) as caught:
        BOX.create_from_code({"point": Point(1, "a\x00b")})

    assert details_of(caught) == {"point": "json"}


class Limited(Model):
    name: str | None = field(min_length=2, max_length=3)
    code: str | None = field(pattern="^[a-z]+$")
    word: str | None = field(pattern=r"^(?!admin).+$")
    score: int | None = field(min=1, max=5)
    share: float | None = field(min=0, max=1)
    price: Decimal | None = field(min=Decimal("0.01"), max=10)
    blob: bytes | None = field(max_length=2)


LIMITED: Validator = validator_of(Limited)


@pytest.mark.parametrize("name", ["né", "👋👋👋", "مرح", "abc"])
def test_lengths_count_characters_not_bytes(name: str) -> None:
    assert LIMITED.patch({"name": name}) == {"name": name}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("name", "a", 'field "name" must have at least 2 characters'),
        ("name", "👋👋👋👋", 'field "name" must have at most 3 characters'),
        ("code", "abc1", 'field "code" must match the pattern ^[a-z]+$'),
        ("code", "abc\n", 'field "code" must match the pattern ^[a-z]+$'),
        ("word", "administrator", r'field "word" must match the pattern ^(?!admin).+$'),
        ("score", 0, 'field "score" must be at least 1'),
        ("score", 6, 'field "score" must be at most 5'),
        ("score", 2**64, 'field "score" must be at most 5'),
        ("share", 1.5, 'field "share" must be at most 1'),
        ("price", 0, 'field "price" must be at least 0.01'),
        ("price", "10.01", 'field "price" must be at most 10'),
        ("blob", "AAAA", 'field "blob" must have at most 2 bytes'),
    ],
)
def test_a_value_beyond_its_limits_is_told_the_limit(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        LIMITED.patch({name: value})

    assert isinstance(caught.value.details, list)
    assert [detail["message"] for detail in caught.value.details] == [message]


def test_an_integer_beyond_64_bits_is_told_so() -> None:
    with pytest.raises(ValidationFailed) as caught:
        BOX.patch({"whole": 2**63})

    assert isinstance(caught.value.details, list)
    assert caught.value.details[0]["message"] == 'field "whole" must fit in 64 bits'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(Box.__annotations__)), json_values, max_size=6))
def test_no_body_breaks_anything_but_the_rules(body: dict[str, Any]) -> None:
    for take in (BOX.create, BOX.patch, BOX.create_from_code, BOX.patch_from_code):
        told = _told(take, body)
        assert "pydantic" not in told
        assert "Input should" not in told


def _told(take: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> str:
    """What a refused body is answered; nothing when it is taken."""
    try:
        take(body)
    except ValidationFailed as error:
        return str(error.details)
    return ""
