"""Every operator on every kind of field, with the rows a person would expect, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import httpx
import pytest

from maniflex import Model, Server, field
from maniflex.model.meta import Kind
from maniflex.query.operators import OPERATORS, Takes, fitting
from maniflex.testing import client
from tests.kit.http import data_of, error_of


def open_field(**options: Any) -> Any:
    return field(filterable=True, sortable=True, **options)


class Thing(Model):
    name: str = open_field()
    text: str | None = open_field(default=None)
    whole: int | None = open_field(default=None)
    ratio: float | None = open_field(default=None)
    flag: bool | None = open_field(default=None)
    amount: Decimal | None = open_field(default=None)
    moment: datetime | None = open_field(default=None)
    day: date | None = open_field(default=None)
    clock: time | None = open_field(default=None)
    token: UUID | None = open_field(default=None)
    choice: Literal["a", "b", "c"] | None = open_field(default=None)
    other_text: str | None = open_field(default=None)
    other_whole: int | None = open_field(default=None)
    other_ratio: float | None = open_field(default=None)
    other_flag: bool | None = open_field(default=None)
    other_amount: Decimal | None = open_field(default=None)
    other_moment: datetime | None = open_field(default=None)
    other_day: date | None = open_field(default=None)
    other_clock: time | None = open_field(default=None)
    other_token: UUID | None = open_field(default=None)
    closed: int = 0


# For each kind three values in ascending order: of the rows "low", "mid" and "top". Row "none" has nulls.
LADDER: dict[Kind, tuple[str, list[Any]]] = {
    Kind.TEXT: ("text", ["Berg", "berg", "ärger"]),
    Kind.INT: ("whole", [-5, 0, 2**63 - 1]),
    Kind.FLOAT: ("ratio", [-1.5, 0.1, 1e300]),
    Kind.DECIMAL: ("amount", ["-2.5", "9.99", "10"]),
    Kind.DATETIME: (
        "moment",
        ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z", "2026-01-01T00:30:00Z"],
    ),
    Kind.DATE: ("day", ["0999-12-31", "2026-02-28", "2026-03-01"]),
    Kind.TIME: ("clock", ["09:30:00", "09:30:00.500000", "10:00:00"]),
    Kind.UUID: ("token", [f"{d}190b3a8-7c2e-7d11-8f3a-0123456789ab" for d in "0af"]),
}
LOW, MID, TOP = ("low",), ("mid",), ("top",)
ORDERED: dict[str, tuple[str, ...]] = {
    "eq": MID,
    "neq": LOW + TOP,
    "gt": TOP,
    "gte": MID + TOP,
    "lt": LOW,
    "lte": LOW + MID,
    "in": MID,
    "not_in": LOW + TOP,
    "eq_field": MID,
    "neq_field": LOW + TOP,
    "gt_field": TOP,
    "gte_field": MID + TOP,
    "lt_field": LOW,
    "lte_field": LOW + MID,
}


@pytest.fixture
async def things(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Four rows; in each `other_…` field stands the middle value."""
    server = Server()
    server.register(Thing)
    async with client(server, database=database_url) as http:
        for place, name in enumerate(("low", "mid", "top")):
            row = {"name": name, "flag": name != "low", "other_flag": True, "choice": "abc"[place]}
            for attribute, values in LADDER.values():
                row |= {attribute: values[place], f"other_{attribute}": values[1]}
            data_of(await http.post("/api/things", json=row), 201)
        data_of(await http.post("/api/things", json={"name": "none"}), 201)
        yield http


async def found(http: httpx.AsyncClient, *filters: str, **params: Any) -> tuple[str, ...]:
    answer = await http.get("/api/things", params={"filter": filters, "sort": "id", **params})
    names = tuple(row["name"] for row in data_of(answer))
    assert answer.json()["meta"]["total"] == len(names)
    return names


async def test_every_operator_finds_what_it_says_on_every_kind_that_has_an_order(
    things: httpx.AsyncClient,
) -> None:
    for kind, (name, values) in LADDER.items():
        for operator in fitting(kind):
            expected = ORDERED.get(operator.op)
            if expected is None:
                continue
            value = f"other_{name}" if operator.takes is Takes.FIELD else values[1]
            assert await found(things, f"{name}:{operator.op}:{value}") == expected, f"{name} {operator.op}"
        assert await found(things, f"{name}:between:{values[0]},{values[1]}") == LOW + MID, name
        assert await found(things, f"{name}:between:{values[1]},{values[0]}") == (), name
        assert await found(things, f"{name}:in:{values[2]},{values[0]},{values[0]}") == LOW + TOP, name
        assert await found(things, f"{name}:not_in:{values[2]},{values[0]}") == MID, name


@pytest.mark.parametrize("name", [name for name, _ in LADDER.values()])
async def test_nulls_are_found_by_asking_for_them_and_by_nothing_else(
    things: httpx.AsyncClient, name: str
) -> None:
    for asking in ("is_null", "is_null:", "eq:null"):
        assert await found(things, f"{name}:{asking}") == ("none",)
    for asking in ("not_null", "not_null:", "neq:null", "ne:null"):
        assert await found(things, f"{name}:{asking}") == LOW + MID + TOP


async def test_booleans_are_equal_different_or_in_a_list(things: httpx.AsyncClient) -> None:
    for text in ("true", "TRUE", "1"):
        assert await found(things, f"flag:eq:{text}") == MID + TOP
        assert await found(things, f"flag:neq:{text}") == LOW
    for text in ("false", "False", "0"):
        assert await found(things, f"flag:eq:{text}") == LOW
        assert await found(things, f"flag:ne:{text}") == MID + TOP
    assert await found(things, "flag:in:true,0") == LOW + MID + TOP
    assert await found(things, "flag:not_in:true") == LOW
    assert await found(things, "flag:eq_field:other_flag") == MID + TOP
    assert await found(things, "flag:neq_field:other_flag") == LOW
    assert await found(things, "flag:is_null") == ("none",)


async def test_enums_are_compared_like_text_and_named_by_their_members(things: httpx.AsyncClient) -> None:
    assert await found(things, "choice:in:a,c") == LOW + TOP
    assert await found(things, "choice:gt:a") == MID + TOP
    assert await found(things, "choice:eq:null") == ("none",)
    assert await found(things, "choice:contains:B") == MID
    for filter in ("choice:eq:d", "choice:in:a,d", "choice:not_in:a,", "choice:neq:A"):
        error = error_of(await things.get("/api/things", params={"filter": filter}), 400, "INVALID_QUERY")
        assert error["message"] == "filter: choice is one of a, b, c"


TEXTS = [
    "Intro",
    "intro",
    "100%",
    "100 per",
    "a_b",
    "aXb",
    "*.py",
    "[x]",
    "?",
    "back\\slash",
    "x,y",
    'q"q',
    "Ä",
    "ä",
]
PATTERNS: list[tuple[str, list[str]]] = [
    ("like:%ntro", ["Intro", "intro"]),
    ("like:I%", ["Intro"]),
    ("ilike:I%", ["Intro", "intro"]),
    ("ilike:INTRO", ["Intro", "intro"]),
    ("like:100\\%", ["100%"]),
    ("like:100%", ["100%", "100 per"]),
    ("like:a_b", ["a_b", "aXb"]),
    ("like:a\\_b", ["a_b"]),
    ("ilike:A_B", ["a_b", "aXb"]),
    ("like:*.py", ["*.py"]),
    ("like:[x]", ["[x]"]),
    ("like:?", ["?"]),
    ("like:_", ["?", "Ä", "ä"]),
    ("like:back\\\\slash", ["back\\slash"]),
    ("ilike:Ä", ["Ä"]),  # letters beyond ASCII have their case on both databases
    ("contains:%", ["100%"]),
    ("contains:_", ["a_b"]),
    ("contains:NTR", ["Intro", "intro"]),
    ("contains:\\", ["back\\slash"]),
    ("contains:*", ["*.py"]),
    ("contains:[", ["[x]"]),
    ("contains:,", ["x,y"]),
    ("contains:", TEXTS),
    ("starts_with:100%", ["100%"]),
    ("starts_with:IN", ["Intro", "intro"]),
    ("ends_with:%", ["100%"]),
    ("ends_with:.PY", ["*.py"]),
    ("eq:x,y", ["x,y"]),
    ("in:x,y", []),
    ('in:"x,y"', ["x,y"]),
    ('in:"x,y",?', ["?", "x,y"]),
    ('in:"q""q"', ['q"q']),
    ('not_in:"x,y","q""q"', [t for t in TEXTS if t not in ("x,y", 'q"q')]),
    ('eq:q"q', ['q"q']),
]


async def test_patterns_and_quoted_values_mean_the_same_on_both_databases(database_url: str) -> None:
    server = Server()
    server.register(Thing)
    async with client(server, database=database_url) as http:
        for text in TEXTS:
            data_of(await http.post("/api/things", json={"name": text, "text": text}), 201)
        for asking, expected in PATTERNS:
            names = await found(http, f"text:{asking}")
            assert sorted(names) == sorted(expected), asking


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ("whole:eq:x", "filter: whole takes a whole number"),
        ("whole:in:1,x", "filter: whole takes a whole number"),
        ("whole:between:1", "filter: between takes exactly two values"),
        ("whole:between:1,2,3", "filter: between takes exactly two values"),
        ("whole:in:", "filter: in takes at least one value"),
        ("text:in:", "filter: in takes at least one value"),
        ("text:not_in:", "filter: not_in takes at least one value"),
        ("whole:gt:null", "filter: whole takes a whole number"),
        ("ratio:lt:1e999", "filter: ratio takes a number"),
        ("amount:gte:NaN", "filter: amount takes a number"),
        ("flag:gt:true", "filter: gt does not work on 'flag'"),
        ("flag:eq:yes", "filter: flag takes true or false"),
        ("whole:like:1", "filter: like does not work on 'whole'"),
        ("moment:between:2026-01-01,x", "filter: moment takes a date and time such as 2026-01-31T12:00:00Z"),
        ("day:eq:2026-02-30", "filter: day takes a date such as 2026-01-31"),
        ("clock:eq:25:00", "filter: clock takes a time such as 12:30:00"),
        ("token:eq:x", "filter: token takes a UUID"),
        ("text:is_null:x", "filter: is_null takes no value"),
        ("text:like:x\\", "filter: a pattern cannot end with a backslash"),
        ('text:in:"x', "filter: a quote in the list is not closed"),
        ("text:eq", "filter: write it as field:operator:value"),
        ("text", "filter: write it as field:operator:value"),
        ("text:nope:x", "filter: there is no operator 'nope'"),
        ("text:equals:x", "filter: there is no operator 'equals'; write eq"),
        ("text:startsWith:x", "filter: there is no operator 'startsWith'; write starts_with"),
        ("whole:>=:1", "filter: there is no operator '>='; write gte"),
        ("whole:eq_field:ratio", "filter: 'ratio' is not of the same kind"),
        ("whole:eq_field:closed", "filter: 'closed' is not a field that can be filtered"),
        ("whole:eq_field:nothing", "filter: 'nothing' is not a field that can be filtered"),
        ("closed:eq:1", "filter: 'closed' is not a field that can be filtered"),
    ],
)
async def test_a_filter_that_cannot_be_meant_says_why(sqlite_url: str, filter: str, said: str) -> None:
    server = Server()
    server.register(Thing)
    async with client(server, database=sqlite_url) as http:
        for parameter in ("filter", "filter[0]"):
            answer = await http.get("/api/things", params={parameter: filter})
            assert error_of(answer, 400, "INVALID_QUERY")["message"] == said


async def test_conditions_of_a_group_are_alternatives_and_groups_are_joined(
    things: httpx.AsyncClient,
) -> None:
    async def grouped(query: str) -> list[str]:
        return [row["name"] for row in data_of(await things.get(f"/api/things?sort=id&{query}"))]

    assert await grouped("filter[0]=name:eq:low&filter[0]=name:eq:top") == ["low", "top"]
    assert await grouped("filter[0]=name:eq:low&filter[1]=name:eq:top") == []
    assert await grouped("filter[0]=name:eq:low&filter[0]=name:eq:top&filter=flag:eq:true") == ["top"]
    both = "filter[7]=name:eq:low&filter[3]=flag:eq:false&filter[7]=whole:is_null&filter[3]=name:eq:none"
    assert await grouped(both) == ["low", "none"]
    assert await grouped("filter[0]=name:in:low,mid") == ["low", "mid"]
    for wrong in ("filter[]=name:eq:a", "filter[x]=name:eq:a", "filter[0=name:eq:a", "filter[0]x=name:eq:a"):
        error_of(await things.get(f"/api/things?{wrong}"), 400, "INVALID_QUERY")


async def test_a_moment_is_compared_in_whatever_zone_and_precision_it_is_written(
    things: httpx.AsyncClient,
) -> None:
    assert await found(things, "moment:gt:2026-01-01") == MID + TOP
    assert await found(things, "moment:lte:2026-01-01T01:00:00+01:00") == LOW
    assert await found(things, "moment:eq:2026-01-01T05:30:00.000001+05:30") == MID
    assert (
        data_of(await things.get("/api/things?filter=moment:eq:2026-01-01T01:00:00+01:00"))[0]["name"]
        == "low"
    )


def test_every_operator_has_a_kind_and_every_kind_an_operator() -> None:
    assert all(operator.kinds for operator in OPERATORS.values())
    assert all(fitting(kind) for kind in Kind)
    assert {
        *ORDERED,
        "between",
        "is_null",
        "not_null",
        "like",
        "ilike",
        "contains",
        "starts_with",
        "ends_with",
    } == {*OPERATORS}
