"""Corners of the grammar that only odd data or odd clients reach."""

from __future__ import annotations

import json
from decimal import Decimal
from time import perf_counter
from typing import Any

import pytest

from maniflex import Context, InvalidQuery, Model, Next, Server, belongs_to, field
from maniflex.config import Limits
from maniflex.testing import client
from tests.kit.http import data_of, error_of

LONGEST = 5000


class Rate(
    Model,
    query="SELECT 'eur' AS id, 2 AS value UNION ALL SELECT 'eur', 2 UNION ALL SELECT 'usd', 1",
    table="rates",
):
    id: str
    value: int = field(filterable=True, sortable=True)


class Price(Model, aggregate=True):
    name: str = field(filterable=True, sortable=True)
    rate_id: str | None = field(default=None, relation=None)
    rate: Rate | None = belongs_to(key="rate_id")


async def test_a_sort_by_what_several_rows_claim_to_be_repeats_no_record(database_url: str) -> None:
    server = Server()
    server.register(Rate, Price)
    async with client(server, database=database_url) as http:
        for name, rate in (("a", "eur"), ("b", "usd"), ("c", None)):
            await server.db(Price).create(name=name, rate_id=rate)
        page = (await http.get("/api/prices?sort=rate.value")).json()
        back = (await http.get("/api/prices?sort=rate.value:desc")).json()

    assert [row["name"] for row in page["data"]] == ["c", "b", "a"]
    assert [row["name"] for row in back["data"]] == ["a", "b", "c"]
    assert (page["meta"]["total"], back["meta"]["total"]) == (3, 3)


TEXT_OPS = ["like", "ilike", "contains", "starts_with", "ends_with"]


def asking_for(op: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    """The requests in which a client can look for a text."""
    where = [{"field": "name", "operator": op, "value": text}]
    spec = {"select": [{"op": "count"}], "where": where}
    group = {"select": [{"op": "max", "field": "name", "as": "last"}]}
    having = {**group, "having": [{"alias": "last", "operator": op, "value": text}]}
    return [
        ("/api/prices", {"filter": f"name:{op}:{text}"}),
        ("/api/prices", {"filter[0]": f"name:{op}:{text}"}),
        ("/api/prices/aggregate", {"aggregate": json.dumps(spec)}),
        ("/api/prices/aggregate", {"aggregate": json.dumps(having)}),
    ]


@pytest.mark.parametrize("op", TEXT_OPS)
async def test_a_text_to_look_for_has_a_longest_form_on_every_way_in(database_url: str, op: str) -> None:
    server = Server(limits=Limits(uri_length=1_000_000))
    server.register(Rate, Price)
    async with client(server, database=database_url) as http:
        for size, status in ((200, 200), (201, 400), (20_000, 400)):
            for path, params in asking_for(op, "*" * size):
                answer = await http.get(path, params=params)
                assert answer.status_code == status, (path, size, answer.text[:200])
                if status == 400:
                    assert "at most 200 characters" in error_of(answer, 400, "INVALID_QUERY")["message"]
        await server.db(Price).list([("name", op, "x" * LONGEST)])  # code may look for more
        with pytest.raises(InvalidQuery):
            await server.db(Price).list([("name", op, "x" * (LONGEST + 1))])


@pytest.mark.parametrize("op", TEXT_OPS)
async def test_a_pattern_has_ten_wildcards_at_the_most(database_url: str, op: str) -> None:
    server = Server()
    server.register(Rate, Price)
    async with client(server, database=database_url) as http:
        for text in ("%x" * 11, "_" * 11, "%_" * 5 + "x%", "\\\\%" * 11):
            for path, params in asking_for(op, text):
                answer = await http.get(path, params=params)
                if op in ("like", "ilike"):
                    message = error_of(answer, 400, "INVALID_QUERY")["message"]
                    assert message.endswith(": at most 10 wildcards in a pattern")
                else:  # where they are no wildcards
                    assert answer.status_code == 200
        for text in ("%x" * 10, "_" * 10, "\\%\\_" * 20):
            for path, params in asking_for(op, text):
                assert (await http.get(path, params=params)).status_code == 200, text


ODD_TEXTS = [
    "",
    "a",
    "A",
    "ab",
    "BA",
    "ä",
    "Ä",
    "aä",
    "%",
    "_",
    "*",
    "[a]",
    "\\",
    "a\nb",
    "İ",
    "i",
    "ß",
    "ſ",
    "K",
    "k",
]


async def test_literal_operators_agree_with_python_about_every_pair_of_texts(database_url: str) -> None:
    def fold(text: str) -> str:
        return "".join(c.lower() if c.isascii() else c for c in text)

    by_op = {"contains": str.__contains__, "starts_with": str.startswith, "ends_with": str.endswith}
    texts = [*ODD_TEXTS, *(f"x{text}y" for text in ODD_TEXTS)]
    server = Server()
    server.register(Rate, Price)
    async with client(server, database=database_url):
        async with server.transaction():
            for text in texts:
                await server.db(Price).create(name=text)
        for op, holds in by_op.items():
            for wanted in ODD_TEXTS:
                rows = await server.db(Price).list([("name", op, wanted)])
                expected = [text for text in texts if holds(fold(text), fold(wanted))]
                assert sorted(row.name for row in rows) == sorted(expected), (op, wanted)


async def test_looking_for_many_letters_costs_little_more_than_for_one(database_url: str) -> None:
    server = Server()
    server.register(Rate, Price)
    async with client(server, database=database_url):
        await server.db(Price).create(name="a" * 2_000_000)

        async def seconds(text: str) -> float:
            best = 1e9
            for _ in range(3):
                start = perf_counter()
                assert await server.db(Price).count([("name", "contains", text)]) == 0
                best = min(best, perf_counter() - start)
            return best

        # By a pattern it would be compared letter by letter at every place: two hundred times as much.
        assert await seconds("a" * 199 + "b") < 60 * await seconds("b")


class Page(Model, global_searchable=True):
    tenant: str
    text: str = field(searchable=True)


async def test_the_score_of_a_bound_search_tells_nothing_of_rows_outside(database_url: str) -> None:
    server = Server()
    server.register(Page)
    server.enable_global_search()

    @server.pipeline.auth.middleware()
    async def mine(ctx: Context, next: Next) -> None:
        if ctx.header("x-tenant"):
            ctx.query.force("tenant", ctx.header("x-tenant"))
        await next()

    async with client(server, database=database_url) as http:
        await server.db(Page).create(tenant="red", text="lamp lamp lamp")
        await server.db(Page).create(tenant="red", text="a lamp among many other words of no use")
        before = await http.get("/api/search?q=lamp", headers={"x-tenant": "red"})
        free = await http.get("/api/search?q=lamp")
        for number in range(30):
            await server.db(Page).create(tenant="blue", text=f"lamp {number}" if number % 3 else "chair")
        after = await http.get("/api/search?q=lamp", headers={"x-tenant": "red"})

    assert data_of(before) == data_of(after)
    assert [hit["score"] for hit in data_of(after)] == [1, 0.5]
    assert [hit["score"] for hit in data_of(free)] != [1, 0.5]


@pytest.mark.parametrize("value", [{}, [], [["name"]], 5, True, {"name": 1}])
@pytest.mark.parametrize("part", ["op", "field", "as", "group_by", "where", "having", "order_by"])
async def test_any_json_in_any_part_of_an_aggregate_is_answered(
    database_url: str, part: str, value: Any
) -> None:
    spec: dict[str, Any] = {"select": [{"op": "count", "as": "n"}]}
    match part:
        case "op" | "field" | "as":
            spec["select"] = [{"op": "count", part: value}]
        case "group_by":
            spec["group_by"] = [value]
        case _:
            name = "alias" if part == "having" else "field"
            spec[part] = [{name: value}]
    server = Server()
    server.register(Rate, Price)
    async with client(server, database=database_url) as http:
        answer = await http.get("/api/prices/aggregate", params={"aggregate": json.dumps(spec)})
        error_of(answer, 400, "INVALID_QUERY")


class Bill(Model, aggregate=True):
    shop: str = field(filterable=True)
    total: Decimal = field(filterable=True)


@pytest.mark.parametrize("op", ["min", "max"])
async def test_extremes_of_decimals_are_compared_and_ordered_as_numbers(database_url: str, op: str) -> None:
    server = Server()
    server.register(Bill)
    async with client(server, database=database_url) as http:
        for shop, total in (("a", "9"), ("b", "10"), ("c", "-2"), ("d", "-10.5")):
            await server.db(Bill).create(shop=shop, total=Decimal(total))

        async def shops(**more: Any) -> str:
            spec = {"select": [{"op": op, "field": "total", "as": "x"}], "group_by": ["shop"], **more}
            answer = await http.get("/api/bills/aggregate", params={"aggregate": json.dumps(spec)})
            return "".join(row["shop"] for row in data_of(answer))

        assert await shops(order_by=[{"field": "x"}]) == "dcab"
        assert await shops(order_by=[{"field": "x", "direction": "desc"}]) == "bacd"
        assert await shops(having=[{"alias": "x", "operator": "gt", "value": 9}]) == "b"
        assert await shops(having=[{"alias": "x", "operator": "between", "value": [-10, 9.0]}]) == "ac"
        assert await shops(having=[{"alias": "x", "operator": "in", "value": ["10.00", "-2.0"]}]) == "bc"
