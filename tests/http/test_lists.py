"""Paging, filters and order of lists, the same on both databases."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import httpx
import pytest

from maniflex import Model, field
from tests.kit.http import created, data_of, error_of, serving


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


def open_field(**options: Any) -> Any:
    return field(filterable=True, sortable=True, **options)


class Item(Model):
    name: str = open_field()
    whole: int | None = open_field(default=None)
    ratio: float | None = open_field(default=None)
    flag: bool = open_field(default=False)
    amount: Decimal | None = open_field(default=None)
    moment: datetime | None = open_field(default=None)
    day: date | None = open_field(default=None)
    clock: time | None = open_field(default=None)
    token: UUID | None = open_field(default=None)
    kind: Literal["a", "b"] = open_field(default="a")
    level: Level = open_field(default=Level.LOW)
    rank: Literal[1, 2] = open_field(default=1)
    plain: str = field(default="x")
    secret: str = field(default="x", hidden=True)
    password: str = field(default="x", writeonly=True)
    size: int = field(default=1, filterable=True, sortable=True, alias="itemSize", column="item_sz")


async def names(http: httpx.AsyncClient, **params: Any) -> list[str]:
    return [row["name"] for row in data_of(await http.get("/api/items", params=params))]


async def test_pages_are_cut_and_counted(database_url: str) -> None:
    async with serving(database_url, Item) as http:
        for number in range(45):
            await created(http, "/api/items", name=f"n{number:02}")
        first = (await http.get("/api/items")).json()
        assert first["meta"] == {"total": 45, "page": 1, "limit": 20, "pages": 3}
        assert [row["name"] for row in first["data"]] == [f"n{n:02}" for n in range(20)]
        last = (await http.get("/api/items?page=3")).json()
        assert last["meta"] == {"total": 45, "page": 3, "limit": 20, "pages": 3}
        assert [row["name"] for row in last["data"]] == [f"n{n:02}" for n in range(40, 45)]
        beyond = (await http.get("/api/items?page=4")).json()
        assert beyond == {"data": [], "meta": {"total": 45, "page": 4, "limit": 20, "pages": 3}}
        assert len(await names(http, limit=7, page=7)) == 3
        far = (await http.get("/api/items?page=1000000000&limit=200")).json()
        assert far["meta"]["total"] == 45


async def test_an_empty_list_has_no_pages(database_url: str) -> None:
    async with serving(database_url, Item) as http:
        empty = {"data": [], "meta": {"total": 0, "page": 1, "limit": 20, "pages": 0}}
        assert (await http.get("/api/items")).json() == empty
        assert (await http.get("/api/items?page=2")).json() == {**empty, "meta": {**empty["meta"], "page": 2}}  # type: ignore[dict-item]


async def test_a_page_holds_at_most_200_rows(sqlite_url: str) -> None:
    async with serving(sqlite_url, Item) as http:
        await created(http, "/api/items", name="a")
        for asked in (200, 201, 1_000_000):
            assert (await http.get(f"/api/items?limit={asked}")).json()["meta"]["limit"] == 200


@pytest.mark.parametrize("key", ["page", "limit"])
@pytest.mark.parametrize(
    "value", ["0", "-1", "1.5", "abc", "", " 1", "٣", "1e3", "9223372036854775808", "9" * 400]
)
async def test_a_page_or_limit_that_is_no_sensible_number_is_400(
    sqlite_url: str, key: str, value: str
) -> None:
    async with serving(sqlite_url, Item) as http:
        error = error_of(await http.get("/api/items", params={key: value}), 400, "INVALID_QUERY")
        assert key in error["message"]


MATCHES: list[tuple[str, Any, list[str]]] = [
    ("name", "Name: with, colon", ["Name: with, colon"]),
    ("whole", 5, ["5", "+5", "05"]),
    ("whole", -(2**63), [str(-(2**63))]),
    ("ratio", 0.1, ["0.1", ".1", "1e-1", "0.10"]),
    ("flag", True, ["true", "TRUE", "1"]),
    ("amount", "1.50", ["1.5", "1.50", "1.500", "15e-1"]),
    (
        "moment",
        "2026-01-01T12:00:00.5Z",
        ["2026-01-01T12:00:00.5Z", "2026-01-01T12:00:00.500000", "2026-01-01T14:00:00.5+02:00"],
    ),
    ("moment", "2026-01-01T00:00:00Z", ["2026-01-01", "2026-01-01T00:00:00Z"]),
    ("day", "2026-02-28", ["2026-02-28"]),
    ("clock", "12:30:00", ["12:30:00", "12:30", "12:30:00.000000"]),
    (
        "token",
        "0190b3a8-7c2e-7d11-8f3a-0123456789ab",
        ["0190b3a8-7c2e-7d11-8f3a-0123456789ab", "0190B3A8-7C2E-7D11-8F3A-0123456789AB"],
    ),
    ("kind", "b", ["b"]),
    ("level", "high", ["high"]),
    ("rank", 2, ["2"]),
    ("itemSize", 7, ["7"]),
]


@pytest.mark.parametrize(("name", "value", "spellings"), MATCHES)
async def test_a_filter_finds_the_value_however_it_is_written(
    database_url: str, name: str, value: Any, spellings: list[str]
) -> None:
    async with serving(database_url, Item) as http:
        await created(http, "/api/items", name="other")
        wanted = await created(http, "/api/items", **{"name": "wanted", name: value})
        for text in spellings:
            found = (await http.get("/api/items", params={"filter": f"{name}:eq:{text}"})).json()
            assert [row["id"] for row in found["data"]] == [wanted["id"]], text
            assert found["meta"]["total"] == 1


async def test_false_is_found_by_false_and_by_0(database_url: str) -> None:
    async with serving(database_url, Item) as http:
        await created(http, "/api/items", name="yes", flag=True)
        await created(http, "/api/items", name="no", flag=False)
        for text in ("false", "0", "False"):
            assert await names(http, filter=f"flag:eq:{text}") == ["no"]


async def test_every_row_can_be_found_by_its_id_and_times(database_url: str) -> None:
    async with serving(database_url, Item) as http:
        record = await created(http, "/api/items", name="a")
        await created(http, "/api/items", name="b")
        for name in ("id", "created_at", "updated_at"):
            assert await names(http, filter=f"{name}:eq:{record[name]}") == ["a"]


async def test_several_filters_are_joined_by_and(database_url: str) -> None:
    async with serving(database_url, Item) as http:
        for name, whole, flag in [("a", 1, True), ("b", 1, False), ("c", 2, True)]:
            await created(http, "/api/items", name=name, whole=whole, flag=flag)
        found = await http.get("/api/items?filter=whole:eq:1&filter=flag:eq:true")
        assert [row["name"] for row in data_of(found)] == ["a"]
        assert data_of(await http.get("/api/items?filter=whole:eq:1&filter=whole:eq:2")) == []


async def test_filter_values_are_never_sql(database_url: str) -> None:
    hostile = ["' OR 1=1 --", "'; DROP TABLE items; --", "%", "_", '"', "\\", "a' || 'b"]
    async with serving(database_url, Item) as http:
        await created(http, "/api/items", name="a")
        for text in hostile:
            assert await names(http, filter=f"name:eq:{text}") == []
            await created(http, "/api/items", name=text)
            assert await names(http, filter=f"name:eq:{text}") == [text]


WRONG_VALUES = [
    ("whole", "x"),
    ("whole", "1.0"),
    ("whole", str(2**63)),
    ("ratio", "nan"),
    ("ratio", "inf"),
    ("ratio", "1e999"),
    ("flag", "yes"),
    ("flag", "2"),
    ("amount", "NaN"),
    ("amount", "1,5"),
    ("moment", "now"),
    ("moment", "2026-13-01T00:00:00Z"),
    ("moment", "0001-01-01T00:00:00+01:00"),
    ("day", "2026-02-30"),
    ("day", "20260228"),
    ("clock", "25:00"),
    ("clock", "12:30:00+02:00"),
    ("token", "not-a-uuid"),
    ("kind", "c"),
    ("level", "LOW"),
    ("rank", "3"),
]


@pytest.mark.parametrize(("name", "text"), WRONG_VALUES)
async def test_a_filter_value_of_the_wrong_type_is_400(database_url: str, name: str, text: str) -> None:
    async with serving(database_url, Item) as http:
        response = await http.get("/api/items", params={"filter": f"{name}:eq:{text}"})
        assert name in error_of(response, 400, "INVALID_QUERY")["message"]


@pytest.mark.parametrize("key", ["filter", "sort"])
async def test_a_field_one_may_not_use_looks_like_one_that_does_not_exist(sqlite_url: str, key: str) -> None:
    async with serving(sqlite_url, Item) as http:
        answers = set()
        for name in ("nothing", "plain", "secret", "password"):
            response = await http.get("/api/items", params={key: f"{name}:eq:x" if key == "filter" else name})
            answers.add(error_of(response, 400, "INVALID_QUERY")["message"].replace(name, "…"))
        assert len(answers) == 1


@pytest.mark.parametrize("key", ["filter", "sort"])
@pytest.mark.parametrize("name", ["item_sz", "size"])
async def test_an_open_field_under_another_of_its_names_is_400_with_its_name(
    sqlite_url: str, key: str, name: str
) -> None:
    async with serving(sqlite_url, Item) as http:
        response = await http.get("/api/items", params={key: f"{name}:eq:1" if key == "filter" else name})
        assert "did you mean 'itemSize'?" in error_of(response, 400, "INVALID_QUERY")["message"]


@pytest.mark.parametrize(
    "query",
    [
        "filter=name",
        "filter=name:eq",
        "filter=",
        "filter=:eq:x",
        "filter=whole:like:x",
        "filter=name:EQ:x",
        "filter[name]=x",
        "sort=",
        "sort=name:up",
        "sort=name,,whole",
        "sort=name:asc:desc",
        "include=posts",
        "select=secret",
        "q=x",
        "cursor=x",
        "filter=name:eq:%00",
        "filter=name:eq:%ff",
        "sort=%00",
        "&".join(["filter=name:eq:x"] * 51),
        "sort=" + ",".join(["name"] * 11),
    ],
)
async def test_a_query_that_cannot_be_honoured_is_400_rather_than_dropped(
    sqlite_url: str, query: str
) -> None:
    async with serving(sqlite_url, Item) as http:
        error_of(await http.get(f"/api/items?{query}"), 400, "INVALID_QUERY")


async def test_parameters_of_the_application_are_left_alone(sqlite_url: str) -> None:
    async with serving(sqlite_url, Item) as http:
        await created(http, "/api/items", name="a")
        assert await names(http, utm="x", verbose="") == ["a"]


SORTED: list[tuple[str, list[Any]]] = [
    ("name", ["", "A", "Z", "a", "z", "ä", "\uffff", "\U0001f600"]),
    ("whole", [None, -(2**63), -1, 0, 9, 10, 2**63 - 1]),
    ("ratio", [None, -1e300, -0.5, 0, 1e-300, 2, 10.5]),
    ("flag", [False, True]),
    ("amount", [None, "-10", "-9.99", "0.00", "9", "9.5", "10", "1000000000000000000000.1"]),
    (
        "moment",
        [
            None,
            "1969-12-31T23:59:59.999999Z",
            "2026-01-01T00:00:00Z",
            "2026-01-01T02:00:00.000001+02:00",
            "2026-01-01T00:00:00.1Z",
        ],
    ),
    ("day", [None, "0999-01-01", "2026-01-31", "2026-02-01"]),
    ("clock", [None, "00:00:00", "09:30:00", "09:30:00.5", "10:00:00"]),
    ("token", [None, *(f"{d}190b3a8-7c2e-7d11-8f3a-0123456789ab" for d in "09af")]),
    ("level", ["high", "low"]),
]


@pytest.mark.parametrize(("name", "values"), SORTED)
async def test_the_order_is_the_same_on_both_databases_and_nulls_come_first(
    database_url: str, name: str, values: list[Any]
) -> None:
    async with serving(database_url, Item) as http:
        ids = [
            (await created(http, "/api/items", **{"name": "x", name: value}))["id"]
            for value in reversed(values)
        ]
        for direction, expected in (("", ids[::-1]), (":asc", ids[::-1]), (":desc", ids)):
            found = data_of(await http.get("/api/items", params={"sort": name + direction}))
            assert [row["id"] for row in found] == expected, direction


async def test_equal_values_are_ordered_by_the_next_key_and_then_by_age(database_url: str) -> None:
    async with serving(database_url, Item) as http:
        for name, whole in [("d", 1), ("c", 2), ("b", 1), ("a", 1)]:
            await created(http, "/api/items", name=name, whole=whole)
        assert await names(http, sort="whole,name:desc") == ["d", "b", "a", "c"]
        assert await names(http, sort="whole:desc,name") == ["c", "a", "b", "d"]
        assert await names(http, sort="whole") == ["d", "b", "a", "c"]
        assert await names(http, sort="whole", limit=1, page=2) == ["b"]
        assert await names(http, sort="created_at:desc") == ["a", "b", "c", "d"]
