"""An answer larger than `Limits.answer_size` is refused, whichever way it became large."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, ModelOptions, Server, field, has_many, with_transaction
from maniflex.config import Limits
from maniflex.testing import client
from tests.http.kit import data_of, error_of

LIMIT = 200_000
TOO_LARGE = "ANSWER_TOO_LARGE"


class Author(Model):
    name: str = field(filterable=True, sortable=True)
    bio: str = ""
    books: list[Book] = has_many()


class Book(Model, export=True, aggregate=True, cursor_field="title", global_searchable=True):
    title: str = field(filterable=True, sortable=True, searchable=True)
    text: str = field(default="", filterable=True)
    author_id: str | None = None


@asynccontextmanager
async def _serving(
    database: str, *middleware: Any, **settings: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = Server(**{"limits": Limits(answer_size=LIMIT), **settings})
    server.register(Author, Book)
    server.enable_global_search()
    for one in middleware:
        server.pipeline.auth.register(one)
    async with client(server, database=database) as http:
        yield server, http


async def _books(server: Server, amount: int, size: int, author: str | None = None) -> None:
    for i in range(amount):
        await server.db(Book).create(title=f"book {i}", text="é" * (size // 2), author_id=author)


@pytest.mark.parametrize(
    "query",
    ["", "?limit=30", "?limit=30&include=author", "?limit=30&select=text", "?limit=30&cursor=", "?q=book"],
)
async def test_a_list_above_the_limit_is_refused_and_a_smaller_one_answered(
    database_url: str, query: str
) -> None:
    async with _serving(database_url) as (server, http):
        await _books(server, 30, 20_000)
        refused = await http.get(f"/api/books{query}")
        fewer = await http.get("/api/books?limit=5")
        less = await http.get("/api/books?limit=30&select=title")

    assert "ask for fewer" in error_of(refused, 400, TOO_LARGE)["message"]
    assert len(data_of(fewer)) == 5
    assert len(data_of(less)) == 30


async def test_a_list_just_below_the_limit_is_the_same_as_without_one(database_url: str) -> None:
    async with _serving(database_url, limits=Limits(answer_size=1 << 40)) as (server, http):
        await _books(server, 9, 20_000)
        answers = [await http.get(f"/api/books?sort=title:asc{more}") for more in ("", "&include=author")]
        rows = await server.db(Book).list(sorts="title")
    sizes = [len(answer.content) for answer in answers]
    async with _serving(database_url, limits=Limits(answer_size=min(sizes))) as (server, http):
        again = [await http.get(f"/api/books?sort=title:asc{more}") for more in ("", "&include=author")]
    async with _serving(database_url, limits=Limits(answer_size=min(sizes) - 1)) as (server, http):
        refused = await http.get("/api/books?sort=title:asc")

    assert [answer.content for answer in again] == [answer.content for answer in answers]
    assert [book["id"] for book in answers[0].json()["data"]] == [book.id for book in rows]
    error_of(refused, 400, TOO_LARGE)


async def test_a_record_counts_as_often_as_it_stands_in_the_answer(database_url: str) -> None:
    async with _serving(database_url) as (server, http):
        author = await server.db(Author).create(name="Ada", bio="b" * 30_000)
        await _books(server, 12, 10, author.id)
        refused = [
            await http.get("/api/books?include=author"),
            await http.get("/api/authors?include=books.author"),
            await http.get(f"/api/authors/{author.id}?include=books.author"),
            await http.get("/api/books?include=author.books"),
        ]
        fine = await http.get("/api/authors?include=books")

    for answer in refused[:3]:
        error_of(answer, 400, TOO_LARGE)
    assert len(data_of(fine)[0]["books"]) == 12
    error_of(refused[3], 400, TOO_LARGE)


async def test_aggregates_are_bound_by_it_too(database_url: str) -> None:
    async with _serving(database_url) as (server, http):
        for i in range(30):
            await server.db(Book).create(title=f"book {i}", text=f"{i}" + "t" * 20_000)
        spec = '{"select":[{"op":"count","as":"n"}],"group_by":["text"]}'
        refused = await http.get("/api/books/aggregate", params={"aggregate": spec})

    error_of(refused, 400, TOO_LARGE)


async def test_exports_and_code_are_exempt(database_url: str) -> None:
    async with _serving(database_url) as (server, http):
        await _books(server, 30, 20_000)
        exported = await http.get("/api/books/export")
        rows = await server.db(Book).list()

    assert exported.status_code == 200
    assert len(exported.content) > LIMIT
    assert len(rows) == 30


async def test_a_model_may_have_a_limit_of_its_own(database_url: str) -> None:
    server = Server(limits=Limits(answer_size=LIMIT))
    server.register(Author)
    server.register(Book, ModelOptions(limits=Limits(answer_size=1 << 30)))
    async with client(server, database=database_url) as http:
        await _books(server, 30, 20_000)

        assert len(data_of(await http.get("/api/books?limit=30"))) == 30


async def test_a_refusal_inside_a_transaction_leaves_the_next_request_whole(database_url: str) -> None:
    async with _serving(database_url, with_transaction()) as (server, http):
        await _books(server, 30, 100_000)
        for _ in range(12):  # more than there are connections
            error_of(await http.get("/api/books?limit=30"), 400, TOO_LARGE)
        made = await http.post("/api/books", json={"title": "after"})

    assert made.status_code == 201


async def test_rows_beyond_the_limit_are_not_read(database_url: str) -> None:
    megabyte = 1_000_000
    async with _serving(database_url, limits=Limits(answer_size=4 * megabyte)) as (server, http):
        await _books(server, 100, megabyte)
        error_of(await http.get("/api/books?limit=100"), 400, TOO_LARGE)
        tracemalloc.start()
        try:
            error_of(await http.get("/api/books?limit=100"), 400, TOO_LARGE)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak < 40 * megabyte


async def test_an_answer_of_the_application_s_own_is_its_own_affair(database_url: str) -> None:
    server = Server(limits=Limits(answer_size=1000))

    @server.action("GET", "/long")
    async def long(ctx: Context) -> str:
        return "a" * 5000

    async with client(server, database=database_url) as http:
        assert data_of(await http.get("/api/long")) == "a" * 5000
