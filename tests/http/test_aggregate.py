"""GET /{table}/aggregate and `ctx.aggregate`: the same exact numbers on both databases, inside the scope."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import Context, InvalidQuery, Model, Next, Operation, Server, WithDeletedAt, field
from maniflex.middleware import db
from maniflex.testing import client
from tests.kit.http import data_of, error_of

MOST = 2**63 - 1


class Shop(Model):
    name: str = field(filterable=True)
    tenant: str = field(filterable=True)


class Order(Model, WithDeletedAt, aggregate=True):
    status: str = field(filterable=True, sortable=True)
    total: Decimal = field(filterable=True, sortable=True)
    units: int = field(default=1, filterable=True)
    weight: float | None = field(default=None, sortable=True)
    paid: bool = field(default=False, filterable=True)
    due: date | None = field(default=None, filterable=True, sortable=True)
    tenant: str = field(default="a", filterable=True)
    shop_id: str | None = field(default=None, filterable=True)
    note: str | None = None
    cost: int = field(default=7, hidden=True)
    pin: int = field(default=7, writeonly=True)
    label: str = field(default="x", alias="tag-name", filterable=True)


class Plain(Model):
    text: str


@asynccontextmanager
async def orders(
    url: str, rows: list[dict[str, Any]] | None = None, server: Server | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    server = server or Server()
    server.register(Order, Shop, Plain)
    async with client(server, database=url) as http:
        for row in SOME if rows is None else rows:
            await server.db(Order).create(**row)
        yield http


def order(status: str, total: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "total": Decimal(total), **more}


SOME = [
    order("paid", "1.10", units=2, weight=0.1, paid=True, due=date(2026, 1, 1)),
    order("paid", "2.200", units=3, weight=0.2, paid=True, due=date(2026, 3, 1)),
    order("open", "10", units=4, due=date(2026, 2, 1)),
]


async def ask(http: httpx.AsyncClient, query: str = "", **spec: Any) -> httpx.Response:
    return await http.get(f"/api/orders/aggregate?aggregate={quote(json.dumps(spec))}{query}")


def counted() -> list[dict[str, Any]]:
    return [{"op": "count"}]


async def test_the_request_of_the_documentation_is_answered(database_url: str) -> None:
    async with orders(database_url) as http:
        answer = await ask(
            http,
            select=[{"op": "count", "as": "n"}, {"op": "sum", "field": "total", "as": "total_of_all"}],
            group_by=["status"],
            where=[{"field": "created_at", "operator": "gte", "value": "2020-01-01"}],
            having=[{"alias": "total_of_all", "operator": "gt", "value": 1}],
            order_by=[{"field": "total_of_all", "direction": "desc"}],
            limit=100,
        )

    assert data_of(answer) == [
        {"status": "open", "n": 1, "total_of_all": "10"},
        {"status": "paid", "n": 2, "total_of_all": "3.3"},
    ]
    assert answer.json()["meta"] == {"limit": 100, "has_more": False}


async def test_every_operation_gives_its_value_in_the_type_of_the_field(database_url: str) -> None:
    async with orders(database_url) as http:
        select = [
            {"op": "count"},
            {"op": "count", "field": "weight"},
            {"op": "count_distinct", "field": "status"},
            {"op": "sum", "field": "units"},
            {"op": "avg", "field": "units"},
            {"op": "sum", "field": "total"},
            {"op": "avg", "field": "total"},
            {"op": "sum", "field": "weight"},
            {"op": "avg", "field": "weight"},
            {"op": "min", "field": "total"},
            {"op": "max", "field": "due"},
            {"op": "max", "field": "status"},
            {"op": "min", "field": "units"},
            {"op": "max", "field": "weight"},
        ]
        answer = await ask(http, select=select)

    assert data_of(answer) == [
        {
            "count": 3,
            "count_weight": 2,
            "count_distinct_status": 2,
            "sum_units": 9,
            "avg_units": "3",
            "sum_total": "13.3",
            "avg_total": "4.4333333333333333",
            "sum_weight": 0.3,
            "avg_weight": 0.15,
            "min_total": "1.1",
            "max_due": "2026-03-01",
            "max_status": "paid",
            "min_units": 2,
            "max_weight": 0.2,
        }
    ]


async def test_no_rows_are_a_count_of_nothing_and_no_sum(database_url: str) -> None:
    async with orders(database_url, []) as http:
        select = [{"op": op, "field": "total"} for op in ("count", "sum", "avg", "min", "max")]
        whole = await ask(http, select=select)
        grouped = await ask(http, select=select, group_by=["status"])

    nothing = {"count_total": 0, "sum_total": None, "avg_total": None, "min_total": None, "max_total": None}
    assert data_of(whole) == [nothing]
    assert data_of(grouped) == []


async def test_sums_keep_every_digit(database_url: str) -> None:
    rows = [
        order("x", "0.0000000000000000000000000001", units=MOST, weight=1e16),
        order("x", "123456789012345678901234567890", units=MOST, weight=1.0),
        order("x", "-0.10", units=MOST, weight=-1e16),
    ]
    async with orders(database_url, rows) as http:
        select = [{"op": "sum", "field": name} for name in ("total", "units", "weight")]
        answer = await ask(http, select=select)

    assert data_of(answer) == [
        {
            "sum_total": "123456789012345678901234567889.9000000000000000000000000001",
            "sum_units": 3 * MOST,
            "sum_weight": 1.0,
        }
    ]


async def test_a_sum_of_floats_beyond_all_floats_is_refused(database_url: str) -> None:
    rows = [order("x", "1", weight=1.7e308), order("x", "1", weight=1.7e308)]
    async with orders(database_url, rows) as http:
        refused = await ask(http, select=[{"op": "sum", "field": "weight"}])
        average = await ask(http, select=[{"op": "avg", "field": "weight"}])

    error_of(refused, 400, "INVALID_QUERY")
    assert data_of(average) == [{"avg_weight": 1.7e308}]


async def test_decimals_that_differ_only_in_zeros_are_one_group(database_url: str) -> None:
    async with orders(database_url, [order("x", t) for t in ("1", "1.0", "1.00", "-2.50")]) as http:
        distinct = {"op": "count_distinct", "field": "total"}
        answer = await ask(http, select=[*counted(), {"op": "max", "field": "total"}], group_by=["total"])
        whole = await ask(http, select=[distinct])

    assert data_of(answer) == [
        {"total": "-2.5", "count": 1, "max_total": "-2.5"},
        {"total": "1", "count": 3, "max_total": "1"},
    ]
    assert data_of(whole) == [{"count_distinct_total": 2}]


async def test_groups_have_the_types_of_their_fields_and_nulls_come_first(database_url: str) -> None:
    rows = [*SOME, order("open", "1")]
    async with orders(database_url, rows) as http:
        up = await ask(http, select=counted(), group_by=["due"])
        down = await ask(
            http, select=counted(), group_by=["due"], order_by=[{"field": "due", "direction": "desc"}]
        )
        flags = await ask(http, select=counted(), group_by=["paid"])

    dates = [None, "2026-01-01", "2026-02-01", "2026-03-01"]
    assert [row["due"] for row in data_of(up)] == dates
    assert [row["due"] for row in data_of(down)] == dates[::-1]
    assert data_of(flags) == [{"paid": False, "count": 2}, {"paid": True, "count": 2}]


@pytest.mark.parametrize(
    ("operator", "value", "found"),
    [
        ("eq", "3.3", ["paid"]),
        ("eq", 3.3, ["paid"]),
        ("ne", "3.30", ["open"]),
        ("between", [1, "3.300"], ["paid"]),
        ("in", ["3.3000", 4], ["paid"]),
        ("not_in", [10], ["paid"]),
        ("lte", "3.29999", []),
        ("is_null", None, []),
        ("not_null", None, ["open", "paid"]),
    ],
)
async def test_having_compares_exactly(
    database_url: str, operator: str, value: Any, found: list[str]
) -> None:
    async with orders(database_url) as http:
        answer = await ask(
            http,
            select=[{"op": "sum", "field": "total", "as": "s"}],
            group_by=["status"],
            having=[{"alias": "s", "operator": operator, "value": value}],
        )

    assert [row["status"] for row in data_of(answer)] == found


async def test_where_speaks_the_grammar_of_lists(database_url: str) -> None:
    async with orders(database_url) as http:
        conditions: list[dict[str, Any]] = [
            {"field": "total", "operator": "between", "value": [1, 2.2]},
            {"field": "status", "operator": "in", "value": ["paid", "gone"]},
            {"field": "status", "operator": "starts_with", "value": "pa"},
            {"field": "paid", "operator": "eq", "value": True},
            {"field": "paid", "operator": "eq", "value": "true"},
            {"field": "due", "operator": "eq", "value": None},
            {"field": "due", "operator": "not_null"},
            {"field": "tag-name", "value": "x"},
        ]
        answers = [await ask(http, select=counted(), where=[where]) for where in conditions]
        counts = [data_of(answer)[0]["count"] for answer in answers]

    assert counts == [2, 2, 2, 2, 2, 0, 3, 3]


async def test_filters_of_the_query_string_are_joined_by_and(database_url: str) -> None:
    async with orders(database_url) as http:
        where = [{"field": "units", "operator": "gt", "value": 2}]
        answer = await ask(
            http, "&filter[0]=status:eq:paid&filter[0]=status:eq:open&filter=paid:eq:1",
            select=counted(), where=where,
        )  # fmt: skip

    assert data_of(answer) == [{"count": 1}]


async def test_a_dotted_field_reaches_the_record_it_belongs_to(database_url: str) -> None:
    server = Server()
    async with orders(database_url, [], server) as http:
        shop = await server.db(Shop).create(name="north", tenant="a")
        await server.db(Order).create(**order("x", "5", shop_id=shop.id))
        await server.db(Order).create(**order("x", "6"))
        answer = await ask(http, select=counted(), where=[{"field": "shop.name", "value": "north"}])

    assert data_of(answer) == [{"count": 1}]


async def test_a_search_narrows_the_records(database_url: str) -> None:
    class Book(Model, aggregate=True):
        title: str = field(searchable=True, filterable=True)
        pages: int = field(filterable=True)

    server = Server()
    server.register(Book)
    async with client(server, database=database_url) as http:
        for title, pages in (("The running man", 10), ("Run away", 20), ("Standing still", 40)):
            await server.db(Book).create(title=title, pages=pages)
        spec = quote(json.dumps({"select": [{"op": "sum", "field": "pages"}]}))
        found = await http.get(f"/api/books/aggregate?q=run&aggregate={spec}")
        fewer = await http.get(f"/api/books/aggregate?q=run&filter=pages:gt:10&aggregate={spec}")

    assert data_of(found) == [{"sum_pages": 30}]
    assert data_of(fewer) == [{"sum_pages": 20}]


async def test_soft_deleted_rows_do_not_count(database_url: str) -> None:
    server = Server()
    async with orders(database_url, server=server) as http:
        [first, *_] = await server.db(Order).list()
        await server.db(Order).delete(first.id)
        answer = await ask(http, select=counted())

    assert data_of(answer) == [{"count": 2}]


async def test_a_body_says_the_same_as_the_parameter(database_url: str) -> None:
    async with orders(database_url) as http:
        spec = {"select": [{"op": "sum", "field": "total"}]}
        by_body = await http.request("GET", "/api/orders/aggregate", json=spec)
        both = await http.request("GET", f"/api/orders/aggregate?aggregate={json.dumps(spec)}", json=spec)
        neither = await http.get("/api/orders/aggregate")
        broken = await http.get("/api/orders/aggregate?aggregate={")
        twice = await ask(http, "&aggregate={}", select=counted())

    assert data_of(by_body) == [{"sum_total": "13.3"}]
    for refused in (both, neither, broken, twice):
        error_of(refused, 400, "INVALID_QUERY")


WRONG: list[dict[str, Any]] = [
    {},
    {"select": []},
    {"select": "count"},
    {"select": [{"op": "median", "field": "total"}]},
    {"select": [{"op": "count", "to": "x"}]},
    {"select": [{"op": ["count"]}]},
    {"select": [{"op": "sum"}]},
    {"select": [{"op": "sum", "field": "status"}]},
    {"select": [{"op": "max", "field": "paid"}]},
    {"select": [{"op": "sum", "field": 7}]},
    {"select": [{"op": "count", "as": 'n" FROM orders; --'}]},
    {"select": [{"op": "count", "as": "n" * 64}]},
    {"select": [{"op": "count"}, {"op": "count"}]},
    {"select": counted(), "group_by": ["status", "status"]},
    {"select": [{"op": "count", "as": "status"}], "group_by": ["status"]},
    {"select": counted(), "group_by": "status"},
    {"select": counted(), "group_by": [None]},
    {"select": counted(), "group_by": ["shop.name"]},
    {"select": counted(), "limit": 0},
    {"select": counted(), "limit": -1},
    {"select": counted(), "limit": 1001},
    {"select": counted(), "limit": True},
    {"select": counted(), "limit": 2.5},
    {"select": counted(), "limit": "7"},
    {"select": counted(), "where": [None]},
    {"select": counted(), "where": {"status": "x"}},
    {"select": counted(), "where": [{"field": "status", "operator": "=", "value": "x"}]},
    {"select": counted(), "where": [{"field": "status", "operator": "eq", "value": 5}]},
    {"select": counted(), "where": [{"field": "units", "operator": "eq", "value": True}]},
    {"select": counted(), "where": [{"field": "units", "operator": "eq", "value": {"a": 1}}]},
    {"select": counted(), "where": [{"field": "units", "operator": "eq", "value": None}]},
    {"select": counted(), "where": [{"field": "units", "operator": "eq", "value": 10**40}]},
    {"select": counted(), "where": [{"field": "units", "operator": "in", "value": 3}]},
    {"select": counted(), "where": [{"field": "units", "operator": "in", "value": []}]},
    {"select": counted(), "where": [{"field": "units", "operator": "not_in", "value": []}]},
    {"select": counted(), "having": [{"alias": "count", "operator": "not_in", "value": []}]},
    {"select": counted(), "where": [{"field": "units", "operator": "between", "value": [1, 2, 3]}]},
    {"select": counted(), "where": [{"field": "units", "operator": "is_null", "value": 1}]},
    {"select": counted(), "where": [{"field": "due", "operator": "gt", "value": "soon"}]},
    {"select": counted(), "having": [{"alias": "sum", "operator": "gt", "value": 1}]},
    {"select": counted(), "having": [{"alias": "count", "operator": "gt", "value": "many"}]},
    {"select": counted(), "having": [{"alias": "count", "operator": "like", "value": "1"}]},
    {"select": counted(), "having": [{"alias": "count", "operator": "gt_field", "value": "count"}]},
    {"select": counted(), "having": [{"field": "count"}]},
    {"select": counted(), "order_by": [{"field": "status"}]},
    {"select": counted(), "order_by": [{"field": "count", "direction": "DESC; DROP"}]},
    {"select": counted(), "order_by": [{"field": ["count"]}]},
    {"select": counted(), "offset": 4},
    {"select": [{"op": "count", "as": f"n{i}"} for i in range(21)]},
    {"select": counted(), "group_by": ["status"] * 11},
    {"select": counted(), "where": [{"field": "paid", "value": True}] * 51},
]


@pytest.mark.parametrize("spec", WRONG, ids=[json.dumps(spec)[:60] for spec in WRONG])
async def test_what_cannot_be_meant_is_refused(database_url: str, spec: dict[str, Any]) -> None:
    async with orders(database_url, []) as http:
        answer = await ask(http, **spec)

    error_of(answer, 400, "INVALID_QUERY")


@pytest.mark.parametrize(
    "parameter", ["page=2", "limit=3", "sort=total", "select=id", "include=shop", "cursor="]
)
async def test_parameters_that_mean_nothing_to_groups_are_refused(database_url: str, parameter: str) -> None:
    async with orders(database_url, []) as http:
        error_of(await ask(http, f"&{parameter}", select=counted()), 400, "INVALID_QUERY")


@pytest.mark.parametrize("name", ["cost", "pin", "note"])
async def test_a_secret_or_closed_field_is_answered_as_one_that_does_not_exist(
    database_url: str, name: str
) -> None:
    def specs(field: str) -> list[dict[str, Any]]:
        return [
            *({"select": [{"op": op, "field": field}]} for op in ("count", "count_distinct", "sum", "max")),
            {"select": counted(), "group_by": [field]},
            {"select": counted(), "where": [{"field": field, "value": 7}]},
            {"select": counted(), "where": [{"field": "units", "operator": "eq_field", "value": field}]},
        ]

    async with orders(database_url) as http:
        for known, unknown in zip(specs(name), specs("nothing"), strict=True):
            closed, absent = await ask(http, **known), await ask(http, **unknown)
            assert closed.status_code == 400
            assert closed.text == absent.text.replace("nothing", name)


async def test_limit_cuts_the_groups_and_meta_says_so(database_url: str) -> None:
    rows = [order(f"s{i:03}", "1") for i in range(105)]
    async with orders(database_url, rows) as http:
        default = await ask(http, select=counted(), group_by=["status"])
        five = await ask(http, select=counted(), group_by=["status"], limit=5)
        all_ = await ask(http, select=counted(), group_by=["status"], limit=1000)

    assert [len(data_of(answer)) for answer in (default, five, all_)] == [100, 5, 105]
    assert [answer.json()["meta"]["has_more"] for answer in (default, five, all_)] == [True, True, False]


async def test_a_model_that_has_not_opted_in_has_no_such_route(database_url: str) -> None:
    async with orders(database_url) as http:
        spec = quote(json.dumps({"select": counted()}))
        error_of(await http.get(f"/api/plains/aggregate?aggregate={spec}"), 404, "NOT_FOUND")


async def test_rules_for_lists_cover_it_and_forced_conditions_bind_it(database_url: str) -> None:
    server = Server()

    @server.pipeline.auth.middleware(models=[Order], operations=[Operation.LIST])
    async def tenancy(ctx: Context, next: Next) -> None:
        if ctx.header("x-tenant") is None:
            ctx.abort(401, "UNAUTHORIZED", "who is asking?")
        ctx.query.force("tenant", ctx.header("x-tenant"))
        await next()

    rows = [order("paid", "1", tenant="a"), order("open", "2", tenant="a"), order("paid", "40", tenant="b")]
    async with orders(database_url, rows, server) as http:
        refused = await ask(http, select=counted())
        http.headers["x-tenant"] = "b"
        select = [{"op": "sum", "field": "total", "as": "s"}]
        mine = await ask(http, select=select)
        widened = await ask(http, "&filter[0]=tenant:eq:a&filter[0]=tenant:eq:b", select=select)
        foreign = await ask(http, select=counted(), where=[{"field": "tenant", "value": "a"}])
        tenants = await ask(http, select=counted(), group_by=["tenant"])

    error_of(refused, 401, "UNAUTHORIZED")
    assert data_of(mine) == data_of(widened) == [{"s": "40"}]
    assert data_of(foreign) == [{"count": 0}]
    assert data_of(tenants) == [{"tenant": "b", "count": 1}]


async def test_filters_added_by_middleware_after_the_request_was_read_count_too(database_url: str) -> None:
    server = Server()

    @server.pipeline.service.middleware(models=[Order], operations=[Operation.LIST])
    async def only_paid(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("paid", True)
        await next()

    async with orders(database_url, server=server) as http:
        answer = await ask(http, select=counted(), where=[{"field": "units", "operator": "gt", "value": 2}])

    assert data_of(answer) == [{"count": 1}]


async def test_code_aggregates_with_tuples_and_gets_values_of_pythons_types(database_url: str) -> None:
    server = Server()
    seen: dict[str, Any] = {}

    @server.action("POST", "/report")
    async def report(ctx: Context) -> None:
        seen["rows"] = await ctx.aggregate(
            Order,
            select=[("count", None, "n"), ("sum", "total", "revenue"), ("max", "due"), ("sum", "cost")],
            group_by="status",
            where=[("created_at", "gte", "2026-01-01"), ("total", "gt", 0)],
            having=[("revenue", "gt", 1)],
            order_by="revenue:desc",
            limit=1,
        )
        seen["all"] = await ctx.aggregate("Order", select=["count"], where={"paid": True})
        async with ctx.transaction():
            await ctx.db(Order).create(**order("new", "7"))
            seen["inside"] = await ctx.aggregate(
                Order, select=[("max", "created_at", "at"), ("sum", "total")]
            )
        for wrong in (
            {"select": [("sum", "totl")]},
            {"select": ["count"], "where": [("totl", 1)]},
            {"select": ["count"], "group_by": ["totl"]},
            {"select": ["count"], "limit": 0},
            {"select": ["count"], "order_by": [("count", "up")]},
        ):
            with pytest.raises(InvalidQuery):
                await ctx.aggregate(Order, **wrong)

    async with orders(database_url, server=server) as http:
        assert (await http.post("/api/report")).status_code == 204

    assert seen["rows"] == [
        {"status": "open", "n": 1, "revenue": Decimal(10), "max_due": date(2026, 2, 1), "sum_cost": 7}
    ]
    assert type(seen["rows"][0]["sum_cost"]) is int
    assert seen["all"] == [{"count": 2}]
    [inside] = seen["inside"]
    assert isinstance(inside["at"], datetime)
    assert inside["at"].utcoffset() == timedelta(0)
    assert inside["sum_total"] == Decimal("20.3")


async def test_code_is_bound_by_what_the_request_was_bound_to(database_url: str) -> None:
    server = Server()
    seen: list[Any] = []

    @server.pipeline.service.middleware(models=[Order], operations=[Operation.LIST])
    async def report(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant", "b")
        seen.extend(await ctx.aggregate(Order, select=["count"]))
        seen.extend(await ctx.aggregate(Shop, select=["count"]))
        await next()

    rows = [order("paid", "1", tenant="a"), order("open", "2", tenant="b")]
    async with orders(database_url, rows, server) as http:
        for tenant in "abb":
            await server.db(Shop).create(name="s", tenant=tenant)
        await http.get("/api/orders")

    assert seen == [{"count": 1}, {"count": 2}]


LINES = [
    ("select=count", {"select": [{"op": "count"}]}),
    ("select=count(*)", {"select": [{"op": "count"}]}),
    ("select=COUNT(distinct%20status)", {"select": [{"op": "count_distinct", "field": "status"}]}),
    ("select=status,sum(total)", {"select": [{"op": "sum", "field": "total"}], "group_by": ["status"]}),
    ("select=max:units", {"select": [{"op": "max", "field": "units"}]}),
    ("sum=total", {"select": [{"op": "sum", "field": "total"}]}),
    ("count", {"select": [{"op": "count"}]}),
    ("op=count&group_by=status", {"select": [{"op": "count"}], "group_by": ["status"]}),
    ("group_by=status", {"select": [{"op": "count"}], "group_by": ["status"]}),
    (
        "select=count&sort=count:desc&limit=2&group_by=status",
        {
            "select": [{"op": "count"}],
            "group_by": ["status"],
            "order_by": [{"field": "count", "direction": "desc"}],
            "limit": 2,
        },
    ),
    ("aggregate=count", {"select": [{"op": "count"}]}),
    ("", {"select": [{"op": "count"}]}),
]


@pytest.mark.parametrize("scoped", [False, True])
async def test_what_says_it_in_another_way_is_told_a_line_that_works(sqlite_url: str, scoped: bool) -> None:
    server = Server()
    if scoped:  # a rule that reads the query string before its own step does
        server.pipeline.db.register(db.force_filter("tenant", lambda ctx: "a"), models=["Order"])
    async with orders(sqlite_url, server=server) as http:
        for query, spec in LINES:
            error = error_of(await http.get(f"/api/orders/aggregate?{query}"), 400, "INVALID_QUERY")
            assert "is not a field" not in error["message"], query
            line = error["message"].partition("aggregate={")[2]
            assert json.loads("{" + line) == spec, query
            assert (await http.get("/api/orders/aggregate", params={"aggregate": "{" + line})).is_success


async def test_a_very_long_text_is_refused_without_being_searched(sqlite_url: str) -> None:
    text = "sum(" + " " * 200_000 + "!"  # a pattern that tries every split of the spaces takes minutes
    async with orders(sqlite_url) as http:
        answer = await http.request("GET", "/api/orders/aggregate", json={"select": [text]})
        error_of(answer, 400, "INVALID_QUERY")
        answer = await http.get("/api/orders/aggregate?op=sum(" + "+" * 20_000 + "!")
        error_of(answer, 414, "URI_TOO_LONG")


async def test_a_function_without_its_field_is_told_the_entry_to_write(sqlite_url: str) -> None:
    async with orders(sqlite_url) as http:
        for op in ("sum", "avg", "min", "max", "count_distinct"):
            entry = f'{{"op":"{op}","field":"<field>"}}'
            for item in (op, {"op": op}, f"{op}()"):
                spec = json.dumps({"select": [item]})
                error = error_of(
                    await http.get("/api/orders/aggregate", params={"aggregate": spec}), 400, "INVALID_QUERY"
                )
                assert error["message"].endswith(f"write {entry}"), item
            error = error_of(await http.get(f"/api/orders/aggregate?select={op}"), 400, "INVALID_QUERY")
            assert error["message"].endswith(f'write aggregate={{"select":[{entry}]}}')
        for text, words in (
            ('{"select":"sum(total)"}', 'select: a list, like [{"op":"sum","field":"total"}]'),
            ('{"select":["sum(total)"]}', "write " + '{"op":"sum","field":"total"}'),
            ('{"select":[{"field":"total"}]}', 'like {"op":"sum","field":"<field>"}'),
        ):
            answer = await http.get("/api/orders/aggregate", params={"aggregate": text})
            assert error_of(answer, 400, "INVALID_QUERY")["message"].endswith(words)


async def test_a_list_that_is_asked_for_a_count_names_the_route_that_counts(sqlite_url: str) -> None:
    async with orders(sqlite_url) as http:
        error = error_of(await http.get("/api/orders?select=count"), 400, "INVALID_QUERY")
        assert error["message"].endswith(
            '; /api/orders/aggregate computes it: aggregate={"select":[{"op":"count"}]}'
        )
        error = error_of(await http.get("/api/plains?select=count"), 400, "INVALID_QUERY")
        assert error["message"] == "select: 'count' is not a field"
