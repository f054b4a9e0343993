"""The description lists the relations a client can follow, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maniflex import Context, Model, ModelOptions, Server, field, has_many, many_to_many
from maniflex.testing import client


class Author(Model):
    name: str = field(filterable=True, sortable=True)
    books: list[Book] = has_many()
    country_id: str | None
    mentor_id: str | None = field(relation="Author", hidden=True)


class Country(Model):
    name: str = field(filterable=True, sortable=True)


class Book(Model):
    title: str = field(filterable=True, sortable=True)
    author_id: str | None
    vault_id: str | None
    tags: list[Tag] = many_to_many(through="BookTag")
    stamps: list[Tag] = many_to_many(through="BookStamp")


class Tag(Model):
    text: str = field(filterable=True, sortable=True)


class BookTag(Model):
    book_id: str
    tag_id: str


class Vault(Model, headless=True):
    code: str = field(filterable=True, sortable=True)


def library(directory: Path) -> Server:
    """Countries, and what stamps a book, are in another database."""
    elsewhere = f"sqlite:///{directory}/elsewhere.db"

    class BookStamp(Model, database=elsewhere):
        book_id: str
        tag_id: str

    server = Server()
    server.register(Author, Book, Tag, BookTag, BookStamp, Vault)
    server.register(Country, ModelOptions(database=elsewhere))
    return server


def parameters(document: dict[str, Any], path: str) -> dict[str, Any]:
    return {p["name"]: p for p in document["paths"][path]["get"]["parameters"]}


async def test_every_name_that_is_listed_can_be_used(tmp_path: Path, database_url: str) -> None:
    server = library(tmp_path)
    async with client(server, database=database_url) as http:
        author = await server.db(Author).create(name="Jane")
        await server.db(Book).create(title="Emma", author_id=author.id)
        document = (await http.get("/api/openapi.json")).json()
        for path in ("/api/authors", "/api/books"):
            offered = parameters(document, path)
            for name in ("sort", "include"):
                for term in offered[name]["schema"]["items"]["enum"]:
                    answer = await http.get(path, params={name: term})
                    assert answer.status_code == 200, answer.text
        books = parameters(document, "/api/books")
        assert books["include"]["schema"]["items"]["enum"] == [
            "author",
            "tags",
            "author.country",
            "author.books",
        ]
        pattern = document["components"]["schemas"]["BookFilter"]["pattern"]
        assert r"author\.name" in pattern
        assert r"tags\.text" in pattern
        for closed in ("country", "stamps", "vault", "mentor"):
            assert closed not in pattern
            for term in (f"{closed}.name", f"author.{closed}.name"):
                assert (await http.get("/api/books", params={"sort": term})).status_code == 400
        for schema in ("Author", "Book"):
            properties = document["components"]["schemas"][schema]["properties"]
            assert not {"mentor", "vault"} & properties.keys()


async def test_a_model_without_routes_is_described_only_where_an_action_tells_of_it() -> None:
    def described(*, told: bool) -> Server:
        server = Server(":memory:")
        server.register(Vault)
        if told:
            server.action("GET", "/vault", response=list[Vault])(nothing)
        return server

    async def nothing(ctx: Context) -> list[Vault]:
        return []

    schemas = [(await described(told=told).openapi())["components"]["schemas"] for told in (False, True)]
    assert ["Vault" in found for found in schemas] == [False, True]
