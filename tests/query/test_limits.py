"""What a query may ask for at most: refused by name, before any statement is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from maniflex import Model, Server, field, has_many
from maniflex.config import DEFAULT_LIMITS, Limits
from maniflex.testing import client
from tests.kit.http import data_of, error_of
from tests.kit.statements import Counting


class Leaf(Model):
    name: str = field(filterable=True, sortable=True, searchable=True)
    leaf_id: str | None = field(default=None, filterable=True)
    leaves: list[Leaf] = has_many(key="leaf_id")


class Twig(Model, limits=replace(DEFAULT_LIMITS, filters=1, max_limit=5, uri_length=60)):
    name: str = field(filterable=True)


@asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Counting]]:
    server = Server(**settings)
    server.register(Leaf, Twig)
    adapter = Counting(url)
    with server.on_database(adapter):
        async with client(server, database=None) as http:
            adapter.statements.clear()
            yield http, adapter


OVER = [
    ("filter: at most 50", "&".join(["filter=name:eq:x"] * 51)),
    ("filter: at most 50", "&".join(["filter[0]=name:eq:x"] * 51)),
    ("filter: at most 50", "&".join([*(["filter=name:eq:x"] * 26), *(["filter[0]=name:eq:x"] * 25)])),
    ("filter groups: at most 20", "&".join(f"filter[{n}]=name:eq:x" for n in range(21))),
    ("filter: at most 500 values", "filter=name:in:" + ",".join(["x"] * 501)),
    ("sort: at most 10", "sort=" + ",".join(["name"] * 11)),
    ("sort: at most 10", "&".join(["sort=name"] * 11)),
    ("select: at most 100", "select=" + ",".join(["name"] * 101)),
    ("page: a whole number from 1 to 1000000000", "page=1000000001"),
    ("page: a whole number from 1 to 1000000000", "page=99999999999999999999"),
    ("limit: a whole number; a page has at most 200 records", "limit=0"),
]


@pytest.mark.parametrize(("said", "query"), OVER)
async def test_what_goes_over_a_limit_is_400_before_any_statement(
    sqlite_url: str, said: str, query: str
) -> None:
    async with serving(sqlite_url) as (http, adapter):
        error = error_of(await http.get(f"/api/leaves?{query}"), 400, "INVALID_QUERY")
        assert error["message"] == said
        assert adapter.statements == []


async def test_what_reaches_a_limit_exactly_is_answered(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        await http.post("/api/leaves", json={"name": "x"})
        for query in (
            "&".join(["filter=name:eq:x"] * 50),
            "&".join(f"filter[{n}]=name:eq:x" for n in range(20)),
            "filter=name:in:" + ",".join(["x"] * 500),
            "sort=" + ",".join(["name"] * 10),
            "select=" + ",".join(["name"] * 100),
            "filter=leaf.leaf.leaf.name:eq:x",
            "page=1000000000&limit=200",
        ):
            assert (await http.get(f"/api/leaves?{query}")).status_code == 200, query
        error_of(await http.get("/api/leaves?filter=leaf.leaf.leaf.leaf.name:eq:x"), 400, "INVALID_QUERY")


async def test_more_includes_than_the_limit_are_400(sqlite_url: str) -> None:
    async with serving(sqlite_url, limits=replace(DEFAULT_LIMITS, includes=2)) as (http, adapter):
        error = error_of(await http.get("/api/leaves?include=leaf.leaf,leaves"), 400, "INVALID_QUERY")
        assert error["message"] == "include: at most 2"
        assert adapter.statements == []
        assert (await http.get("/api/leaves?include=leaf,leaves")).status_code == 200


@pytest.mark.parametrize("path", ["/api/leaves", "/api/leaves/some-id"])
async def test_a_query_string_that_is_too_long_is_414_and_is_not_read(sqlite_url: str, path: str) -> None:
    async with serving(sqlite_url) as (http, adapter):
        for query in ("filter=name:eq:" + "x" * 8192, "anything=" + "x" * 8192):
            error_of(await http.get(f"{path}?{query}"), 414, "URI_TOO_LONG")
        assert adapter.statements == []
        assert (await http.get("/api/leaves?filter=name:eq:" + "x" * (8192 - 15))).status_code == 200


async def test_a_model_can_have_limits_of_its_own(sqlite_url: str) -> None:
    async with serving(sqlite_url) as (http, _):
        error_of(await http.get("/api/twigs?filter=name:eq:a&filter=name:eq:b"), 400, "INVALID_QUERY")
        error_of(await http.get("/api/twigs?filter=name:eq:" + "a" * 60), 414, "URI_TOO_LONG")
        assert (await http.get("/api/twigs?limit=50")).json()["meta"]["limit"] == 5


async def test_a_list_with_filter_sort_count_and_include_runs_two_statements(database_url: str) -> None:
    async with serving(database_url) as (http, adapter):
        root = data_of(await http.post("/api/leaves", json={"name": "root"}), 201)
        for n in range(25):
            await http.post("/api/leaves", json={"name": f"n{n:02}", "leaf_id": root["id"]})
        adapter.statements.clear()

        answer = await http.get("/api/leaves?filter=name:starts_with:n&sort=name&include=leaf")

        assert len(data_of(answer)) == 20
        assert answer.json()["meta"]["total"] == 25
        assert len(adapter.statements) == 2
        adapter.statements.clear()
        await http.get("/api/leaves?include=leaf.leaves,leaves.leaf")
        assert len(adapter.statements) == 5


async def test_an_answer_with_too_many_related_records_is_refused(database_url: str) -> None:
    class Author(Model):
        name: str = ""
        books: list[Book] = has_many()

    class Book(Model):
        author_id: str

    server = Server(limits=Limits(included_rows=5))
    server.register(Author, Book)
    async with client(server, database=database_url) as http:
        author = await server.db(Author).create()
        for _ in range(5):
            await server.db(Book).create(author_id=author.id)
        enough = await http.get("/api/authors?include=books")
        repeated = await http.get("/api/books?include=author.books")
        await server.db(Book).create(author_id=author.id)
        too_many = await http.get("/api/authors?include=books")

    assert len(enough.json()["data"][0]["books"]) == 5
    assert (repeated.status_code, too_many.status_code) == (400, 400)
    assert "include" in too_many.json()["error"]["message"]
