"""An answer larger than `Limits.answer_size` is refused, whichever way it became large."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import BaseModel

from maniflex import Context, Model, ModelOptions, Response, Server, field, has_many, with_transaction
from maniflex.config import Limits
from maniflex.testing import client
from tests.kit.http import data_of, error_of

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


# -- what the application answers with


class Shelf(BaseModel):
    books: list[dict[str, str]]


@dataclass
class Row:
    text: str
    at: datetime


def _values() -> dict[str, Any]:
    """Answers of all kinds that are written in pieces, by name."""
    text = 'é\n"x"' * 3000
    rows = [{"text": text[:200], "number": i, "none": None} for i in range(300)]
    when = datetime(2024, 5, 31, tzinfo=UTC)
    return {
        "text": text,
        "rows": rows,
        "named": {"rows": rows, "text": text, "few": [1, 2], 5: {"deep": [rows, [], {}]}},
        "tuple and set": (tuple(rows), {text}, frozenset()),
        "records": [Author(name=text[:200]) for _ in range(100)],
        "a model": Shelf(books=[{"text": text[:300]} for _ in range(100)]),
        "models": [Shelf(books=[{"text": "a"}] * 50) for _ in range(50)],
        "dataclasses": [Row(text[:300], when) for _ in range(100)],
        "scalars": [Decimal("1.5"), UUID(int=5), when, when.date(), b"bytes", 1.5, True] * 1000,
        "values": dict(enumerate(rows)).values(),
        "small": {"a": 1},
        "nothing": [],
    }


@pytest.mark.parametrize("name", _values())
async def test_an_answer_in_pieces_is_what_it_would_be_in_one(name: str, sqlite_url: str) -> None:
    server = Server()
    server.register(Author, Book)
    value = _values()[name]

    @server.action("GET", "/value")
    async def give(ctx: Context) -> Any:
        return value

    @server.action("GET", "/each")
    async def give_each(ctx: Context) -> Any:
        return {"items": (item for item in [value, 1, value])}

    async with client(server, database=sqlite_url) as http:
        whole = server._seal().runtime.encode(value)

        assert (await http.get("/api/value")).content == b'{"data":' + whole + b"}"
        each = (await http.get("/api/each")).content
        assert each == b'{"data":{"items":[' + whole + b",1," + whole + b"]}}"


def _endless(made: list[int]) -> Iterator[dict[str, str]]:
    for i in itertools.count():
        made.append(i)
        yield {"text": "t" * 1000}


async def _endless_async(made: list[int]) -> AsyncIterator[dict[str, str]]:
    for item in _endless(made):
        yield item


TOO_MUCH: dict[str, Callable[[list[int]], Any]] = {
    "an iterator": _endless,
    "an async iterator": _endless_async,
    "an iterator inside": lambda made: {"items": [_endless(made)]},
    "a list": lambda made: [{"text": "t" * 1000}] * 300,
    "a text": lambda made: "t" * 2 * LIMIT,
    "a model": lambda made: Shelf(books=[{"text": "t" * 1000}] * 300),
    "numbers": lambda made: list(range(100_000)),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
async def test_an_action_that_returns_too_much_is_told_to_stream_it(
    kind: str, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(limits=Limits(answer_size=LIMIT))
    made: list[int] = []

    @server.action("GET", "/much")
    async def much(ctx: Context) -> Any:
        return TOO_MUCH[kind](made)

    async with client(server, database=sqlite_url) as http:
        answer = await http.get("/api/much")

    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "code": TOO_LARGE,
        "message": "the answer is larger than the server allows",
    }
    assert f"larger than {LIMIT} bytes (Limits.answer_size)" in caplog.text
    assert "stream" in caplog.text
    assert len(made) < 300


async def test_an_answer_that_is_streamed_has_no_limit(sqlite_url: str) -> None:
    server = Server(limits=Limits(answer_size=1000))

    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(100):
            yield b"t" * 1000

    @server.action("GET", "/much")
    async def much(ctx: Context) -> Any:
        return Response(200, stream=pieces(), content_type="text/plain")

    async with client(server, database=sqlite_url) as http:
        answer = await http.get("/api/much")

    assert (answer.status_code, len(answer.content)) == (200, 100_000)
