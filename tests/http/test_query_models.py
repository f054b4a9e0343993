"""Read-only models made by a SELECT: listed, filtered, sorted, paged and aggregated like tables."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import (
    Context,
    DeclarationError,
    Model,
    ModelOptions,
    Next,
    Operation,
    Server,
    WithDeletedAt,
    belongs_to,
    field,
    has_many,
)
from maniflex.testing import client
from tests.kit.http import data_of, error_of


class Seller(Model):
    name: str
    sales: list[SellerSales] = has_many()


class Sale(Model):
    region: str
    amount: Decimal
    seller_id: str | None = None
    tenant: str = "a"


class RegionSales(
    Model,
    query="""
        SELECT region, tenant, COUNT(*) AS sales, MAX(amount) AS largest,
               MIN(created_at) AS since, 's' AS secret
          FROM sales
         WHERE region LIKE '%' AND ':tenant' <> '?' -- neither a parameter of anybody's
         GROUP BY region, tenant;
    """,
    aggregate=True,
    table="region_sales",
):
    region: str = field(filterable=True, sortable=True)
    tenant: str = field(filterable=True)
    sales: int = field(filterable=True, sortable=True)
    largest: Decimal = field(filterable=True, sortable=True, alias="biggest")
    since: datetime = field(filterable=True, sortable=True)
    secret: str = field(hidden=True)


class SellerSales(
    Model,
    query={
        "sqlite": """SELECT seller_id AS id, seller_id, COUNT(*) AS sales, MIN(created_at) AS created_at
                       FROM sales WHERE seller_id IS NOT NULL GROUP BY seller_id""",
        "postgresql": """SELECT seller_id AS id, seller_id, COUNT(*)::int AS sales,
                                MIN(created_at) AS created_at
                           FROM sales WHERE seller_id IS NOT NULL GROUP BY seller_id""",
    },
    cursor_field="sales",
    table="seller_sales",
):
    id: str
    seller_id: str = field(filterable=True)
    sales: int = field(filterable=True, sortable=True)
    created_at: datetime


SOME = [("north", "2.5"), ("north", "10"), ("south", "9.75"), ("east", "9.750")]


@asynccontextmanager
async def selling(url: str, server: Server | None = None) -> AsyncIterator[httpx.AsyncClient]:
    server = server or Server()
    server.register(Seller, Sale, RegionSales, SellerSales)
    async with client(server, database=url) as http:
        for region, amount in SOME:
            await server.db(Sale).create(region=region, amount=Decimal(amount))
        yield http


async def test_what_the_query_gives_is_listed_in_declared_order(database_url: str) -> None:
    async with selling(database_url) as http:
        answer = await http.get("/api/region_sales")

    rows = data_of(answer)
    assert [(row["region"], row["sales"], float(row["biggest"])) for row in rows] == [
        ("east", 1, 9.75),
        ("north", 2, 10.0),
        ("south", 1, 9.75),
    ]
    assert set(rows[0]) == {"region", "tenant", "sales", "biggest", "since"}
    assert answer.json()["meta"] == {"total": 3, "page": 1, "limit": 20, "pages": 1}


@pytest.mark.parametrize(
    ("query", "regions"),
    [
        ("sort=sales:desc,region:desc", ["north", "south", "east"]),
        ("sort=biggest:asc", ["east", "south", "north"]),
        ("filter=biggest:gt:9.75", ["north"]),
        ("filter=biggest:eq:9.75000", ["east", "south"]),
        ("filter=sales:in:1,7", ["east", "south"]),
        ("filter=region:contains:OUT", ["south"]),
        ("filter=since:gt:2020-01-01&filter=region:neq:east", ["north", "south"]),
        ("filter[0]=region:eq:east&filter[0]=sales:eq:2", ["east", "north"]),
        ("limit=1&page=2", ["north"]),
        ("page=9", []),
        ("select=region&sort=region:desc", ["south", "north", "east"]),
    ],
)
async def test_the_list_grammar_works_on_its_columns(
    database_url: str, query: str, regions: list[str]
) -> None:
    async with selling(database_url) as http:
        assert [row["region"] for row in data_of(await http.get(f"/api/region_sales?{query}"))] == regions


@pytest.mark.parametrize("query", ["filter=secret:eq:s", "sort=secret", "select=secret", "filter=id:eq:1"])
async def test_columns_it_does_not_show_or_have_are_refused(database_url: str, query: str) -> None:
    async with selling(database_url) as http:
        error_of(await http.get(f"/api/region_sales?{query}"), 400, "INVALID_QUERY")


async def test_it_can_be_aggregated(database_url: str) -> None:
    spec = {"select": [{"op": "sum", "field": "biggest", "as": "s"}, {"op": "avg", "field": "sales"}]}
    async with selling(database_url) as http:
        answer = await http.get(f"/api/region_sales/aggregate?aggregate={quote(json.dumps(spec))}")

    assert data_of(answer) == [{"s": "29.5", "avg_sales": "1.3333333333333333"}]


async def test_nothing_can_be_written(database_url: str) -> None:
    server = Server()
    async with selling(database_url, server) as http:
        seller = await server.db(Seller).create(name="Ada")
        await server.db(Sale).create(region="x", amount=Decimal(1), seller_id=seller.id)
        item = f"/api/seller_sales/{seller.id}"
        refused = [
            await http.post("/api/region_sales", json={"region": "x"}),
            await http.post("/api/seller_sales", json={}),
            await http.patch(item, json={"sales": 7}),
            await http.delete(item),
        ]
        allowed = await http.options("/api/region_sales")
        for write in (
            server.db(SellerSales).create(seller_id="x", sales=1),
            server.db(SellerSales).update(seller.id, sales=2),
            server.db(SellerSales).increment(seller.id, sales=2),
            server.db(SellerSales).delete(seller.id),
        ):
            with pytest.raises(DeclarationError, match="SellerSales is read-only"):
                await write

    for answer in refused:
        error_of(answer, 405, "METHOD_NOT_ALLOWED")
    assert allowed.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_a_declared_id_gives_it_an_item_route_relations_and_keyset_pages(database_url: str) -> None:
    server = Server()
    async with selling(database_url, server) as http:
        ids = []
        for number in (1, 2, 3):
            seller = await server.db(Seller).create(name=f"seller {number}")
            ids.append(seller.id)
            for _ in range(number):
                await server.db(Sale).create(region="x", amount=Decimal(1), seller_id=seller.id)
        one = data_of(await http.get(f"/api/seller_sales/{ids[1]}?include=seller"))
        absent = await http.get("/api/seller_sales/nothing")
        none = await http.get("/api/region_sales/north")
        first = await http.get("/api/seller_sales?cursor=&limit=2")
        after = first.json()["meta"]["next_cursor"]
        second = await http.get(f"/api/seller_sales?cursor={after}&limit=2")
        listed = data_of(await http.get(f"/api/sellers/{ids[2]}?include=sales"))
        by_code = await server.db(SellerSales).list(filters={"sales": 3})

    assert (one["id"], one["sales"], one["seller"]["name"]) == (ids[1], 2, "seller 2")
    assert "updated_at" not in one
    error_of(absent, 404, "NOT_FOUND")
    error_of(none, 404, "NOT_FOUND")
    assert [row["sales"] for row in data_of(first)] == [1, 2]
    assert [row["sales"] for row in data_of(second)] == [3]
    assert [row["sales"] for row in listed["sales"]] == [3]
    assert [(record.id, record.sales) for record in by_code] == [(ids[2], 3)]


async def test_forced_conditions_bind_it(database_url: str) -> None:
    server = Server()

    @server.pipeline.auth.middleware(models=[RegionSales], operations=[Operation.LIST])
    async def tenancy(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant", "b")
        await next()

    async with selling(database_url, server) as http:
        await server.db(Sale).create(region="west", amount=Decimal(1), tenant="b")
        answer = await http.get("/api/region_sales?filter[0]=tenant:eq:a&filter[0]=tenant:eq:b")

    assert [row["region"] for row in data_of(answer)] == ["west"]
    assert answer.json()["meta"]["total"] == 1


async def test_a_condition_on_a_column_it_does_not_have_refuses_the_request(database_url: str) -> None:
    server = Server()

    @server.pipeline.auth.middleware(models=[SellerSales])
    async def tenancy(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant", "b")
        await next()

    async with selling(database_url, server) as http:
        error_of(await http.get("/api/seller_sales"), 500, "INTERNAL")


async def test_no_table_is_made_for_it(database_url: str) -> None:
    server = Server()
    async with selling(database_url, server):
        catalog = "sqlite_master" if "sqlite" in database_url else "pg_class"
        name = "name" if "sqlite" in database_url else "relname"
        rows = await server.raw_query(f"SELECT {name} AS n FROM {catalog}")

    names = {row["n"] for row in rows}
    assert "sales" in names
    assert not {"region_sales", "seller_sales"} & names


async def test_columns_the_query_does_not_give_stop_the_start(database_url: str) -> None:
    class Half(Model, query="SELECT region AS region, 1 AS other FROM sales"):
        region: str
        amount: Decimal
        count: int

    server = Server()
    server.register(Sale, Half)

    with pytest.raises(DeclarationError, match="Half: the query gives no column amount, count"):
        async with client(server, database=database_url):
            pass


async def test_a_query_that_does_not_run_stops_the_start(database_url: str) -> None:
    class Broken(Model, query="SELECT region FROM no_such_table"):
        region: str

    server = Server()
    server.register(Broken)

    with pytest.raises(DeclarationError, match=r"Broken: the query does not run: .*no_such_table"):
        async with client(server, database=database_url):
            pass


async def test_a_query_for_the_other_database_only_stops_the_start(database_url: str) -> None:
    other = "postgresql" if "sqlite" in database_url else "sqlite"

    class Elsewhere(Model):
        one: int

    server = Server(database=database_url)
    server.register(Elsewhere, ModelOptions(query={other: "SELECT 1 AS one"}))

    with pytest.raises(DeclarationError, match="Elsewhere: query= has no SELECT for"):
        server.seal()


def problem_of(*models: Any) -> str:
    server = Server(database=":memory:")
    server.register(*models)
    with pytest.raises(DeclarationError) as caught:
        server.seal()
    return str(caught.value)


ONE = "SELECT 1 AS one"


def test_what_is_about_rows_of_its_own_cannot_be_declared() -> None:
    class Marked(Model, WithDeletedAt, query=ONE):
        one: int

    class Locked(Model, query=ONE):
        one: int = field(lock_when={"one": 1})

    class Unique(Model, query=ONE):
        one: str = field(unique=True)

    class Searched(Model, query=ONE):
        one: str = field(searchable=True)

    class Empty(Model, query=ONE):
        pass

    class Walked(Model, query=ONE, cursor_field="one"):
        one: int = field(sortable=True)

    class Plain(Model):
        one: int

    assert "soft_delete cannot be set on a query model" in problem_of(Marked)
    assert "lock_when cannot be set on a query model" in problem_of(Locked)
    assert "Unique.one: unique cannot be set on a query model" in problem_of(Unique)
    assert "Searched.one: searchable cannot be set on a query model" in problem_of(Searched)
    assert "a query model declares the columns" in problem_of(Empty)
    assert "cursor_field needs an id" in problem_of(Walked)
    for option in ("optimistic_lock", "versioned"):
        assert f"{option} cannot be set" in problem_of(Plain, ModelOptions(**{"query": ONE, option: True}))  # type: ignore[arg-type]


@pytest.mark.parametrize("query", ["", "  ", {}, {"mysql": ONE}, {"sqlite": 7}, 7], ids=str)
def test_a_query_is_a_select_or_one_for_each_database(query: Any) -> None:
    class Plain(Model):
        one: int

    assert "query" in problem_of(Plain, ModelOptions(query=query))


def test_a_relation_needs_the_id_of_a_query_model() -> None:
    class Total(Model, query=ONE):
        one: int

    class Holder(Model):
        total_id: str
        total: Total = belongs_to()

    class Guess(Model):
        total_id: str

    assert "Holder.total: needs the id of Total" in problem_of(Total, Holder)
    server = Server(database=":memory:")
    server.register(Total, Guess)
    server.seal()
