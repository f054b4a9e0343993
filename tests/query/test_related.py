"""Filters, sorts and includes across relations: who is found, in which order, with whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from maniflex import Model, Server, WithDeletedAt, belongs_to, field, has_many, many_to_many
from maniflex.testing import client
from tests.kit.http import data_of, error_of


class Author(Model):
    name: str = field(filterable=True, sortable=True)
    age: int | None = field(default=None, filterable=True, sortable=True)
    boss_id: str | None = field(default=None, relation="Author")
    private: str = "x"
    password: str = field(default="x", writeonly=True)
    mentor_id: str | None = field(default=None, hidden=True)
    mentor: Author | None = belongs_to(key="mentor_id")
    reports: list[Author] = has_many(key="boss_id")
    pupils: list[Author] = has_many(key="mentor_id")
    books: list[Book] = has_many(key="author_id")


class Book(Model, WithDeletedAt):
    title: str = field(filterable=True, sortable=True)
    author_id: str | None = field(default=None, filterable=True)
    editor_id: str | None = field(default=None)
    editor: Author | None = belongs_to(key="editor_id")
    tags: list[Tag] = many_to_many(through="BookTag")


class Tag(Model, WithDeletedAt):
    label: str = field(filterable=True)
    books: list[Book] = many_to_many(through="BookTag")


class BookTag(Model):
    book_id: str = field(filterable=True)
    tag_id: str = field(filterable=True)


MODELS = (Author, Book, Tag, BookTag)


@pytest.fixture
async def library(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    server = Server()
    server.register(*MODELS)
    async with client(server, database=database_url) as http:
        await furnish(http)
        yield http


async def furnish(http: httpx.AsyncClient) -> None:
    ids: dict[str, str] = {}

    async def make(path: str, known_as: str, **body: Any) -> None:
        ids[known_as] = data_of(await http.post(f"/api/{path}", json=body), 201)["id"]

    await make("authors", "zoe", name="Zoe", age=50)
    await make("authors", "adam", name="Adam", age=30, boss_id=ids["zoe"])
    await make("authors", "bea", name="Bea", boss_id=ids["adam"])
    await make("books", "one", title="One", author_id=ids["zoe"], editor_id=ids["adam"])
    await make("books", "two", title="Two", author_id=ids["adam"], editor_id=ids["adam"])
    await make("books", "three", title="Three", author_id=ids["adam"])
    await make("books", "four", title="Four")
    await make("books", "gone", title="Gone", author_id=ids["bea"])
    for label in ("red", "blue", "faded"):
        await make("tags", label, label=label)
    for book, tag in (("one", "red"), ("one", "blue"), ("two", "red"), ("three", "faded"), ("gone", "red")):
        await make("book_tags", f"{book}-{tag}", book_id=ids[book], tag_id=ids[tag])
    for path in (f"books/{ids['gone']}", f"tags/{ids['faded']}"):
        assert (await http.delete(f"/api/{path}")).status_code == 204


async def titles(http: httpx.AsyncClient, query: str) -> list[str]:
    answer = await http.get(f"/api/books?{query}")
    rows = data_of(answer)
    assert answer.json()["meta"]["total"] == len(rows)
    return [row["title"] for row in rows]


async def names(http: httpx.AsyncClient, query: str) -> list[str]:
    return [row["name"] for row in data_of(await http.get(f"/api/authors?{query}"))]


async def test_a_filter_on_the_record_one_belongs_to(library: httpx.AsyncClient) -> None:
    assert await titles(library, "sort=title&filter=author.name:eq:Adam") == ["Three", "Two"]
    assert await titles(library, "sort=title&filter=author.age:gte:30") == ["One", "Three", "Two"]
    assert await titles(library, "filter=author.age:is_null") == []  # the only such book is deleted
    assert await titles(library, "sort=title&filter=editor.name:eq:Adam&filter=author.name:eq:Zoe") == ["One"]


async def test_a_filter_on_the_records_one_has(library: httpx.AsyncClient) -> None:
    assert await names(library, "filter=books.title:in:One,Gone") == ["Zoe"]
    assert await names(library, "filter=books.title:contains:t") == ["Adam"]  # twice, and found once
    assert await names(library, "sort=name&filter=books.tags.label:eq:red") == ["Adam", "Zoe"]


async def test_a_filter_across_a_junction_leaves_deleted_ends_out(library: httpx.AsyncClient) -> None:
    assert await titles(library, "sort=title&filter=tags.label:eq:red") == ["One", "Two"]
    assert await titles(library, "filter=tags.label:eq:faded") == []
    labels = data_of(await library.get("/api/tags?sort=id&filter=books.title:not_null"))
    assert [tag["label"] for tag in labels] == ["red", "blue"]


async def test_a_filter_goes_through_a_reference_to_the_same_model(library: httpx.AsyncClient) -> None:
    assert await names(library, "filter=boss.name:eq:Zoe") == ["Adam"]
    assert await names(library, "filter=boss.boss.name:eq:Zoe") == ["Bea"]
    assert await names(library, "filter=reports.reports.name:eq:Bea") == ["Zoe"]
    assert await names(library, "filter=boss.boss.boss.name:not_null") == []


async def test_two_conditions_on_many_records_need_not_meet_in_one(library: httpx.AsyncClient) -> None:
    assert await titles(library, "filter=tags.label:eq:red&filter=tags.label:eq:blue") == ["One"]
    grouped = "filter[0]=tags.label:eq:blue&filter[0]=author.name:eq:Adam"
    assert await titles(library, f"sort=title&{grouped}") == ["One", "Three", "Two"]


async def test_two_fields_of_a_related_record_can_be_compared(library: httpx.AsyncClient) -> None:
    assert await titles(library, "sort=title&filter=author.created_at:lte_field:updated_at") == [
        "One",
        "Three",
        "Two",
    ]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("author.name,title", ["Four", "Three", "Two", "One"]),
        ("author.name:desc,title", ["One", "Three", "Two", "Four"]),
        ("editor.age,author.age:desc,title", ["Three", "Four", "One", "Two"]),
        ("author.boss.name:desc,title:desc", ["Two", "Three", "One", "Four"]),
        ("title:desc", ["Two", "Three", "One", "Four"]),
    ],
)
async def test_a_list_is_sorted_by_what_it_belongs_to_and_those_without_come_first(
    library: httpx.AsyncClient, sort: str, expected: list[str]
) -> None:
    assert await titles(library, f"sort={sort}") == expected


@pytest.mark.parametrize(
    "sort", ["tags.label", "books.title", "author.private", "author.password", "author", "author."]
)
async def test_a_sort_across_many_records_or_closed_fields_is_400(
    library: httpx.AsyncClient, sort: str
) -> None:
    error = error_of(await library.get(f"/api/books?sort={sort}"), 400, "INVALID_QUERY")
    assert error["message"] == f"sort: {sort!r} is not a field that can be sorted by"


@pytest.mark.parametrize("sort", ["-title", "-nothing", "title,-title", "-author.name", "-author.password"])
async def test_a_minus_before_a_sort_is_told_how_to_write_it(library: httpx.AsyncClient, sort: str) -> None:
    error = error_of(await library.get(f"/api/books?sort={sort}"), 400, "INVALID_QUERY")
    name = sort.rpartition("-")[2]
    assert error["message"].endswith(f"sorted by; descending order is written {name}:desc")


async def test_includes_nest_two_deep_and_come_in_the_order_of_their_ids(library: httpx.AsyncClient) -> None:
    found = data_of(await library.get("/api/authors?sort=name&include=books.tags,reports"))
    seen = {
        author["name"]: (
            [(book["title"], [tag["label"] for tag in book["tags"]]) for book in author["books"]],
            [report["name"] for report in author["reports"]],
        )
        for author in found
    }
    assert seen == {
        "Adam": ([("Two", ["red"]), ("Three", [])], ["Bea"]),
        "Bea": ([], []),
        "Zoe": ([("One", ["red", "blue"])], ["Adam"]),
    }
    assert all("password" not in author and "mentor_id" not in author for author in found)


async def test_two_relations_to_one_model_are_told_apart_and_a_null_key_is_absent(
    library: httpx.AsyncClient,
) -> None:
    found = data_of(await library.get("/api/books?sort=title&include=author,editor.boss"))
    seen = {b["title"]: {k: b[k]["name"] for k in ("author", "editor") if k in b} for b in found}
    assert seen == {
        "Four": {},
        "One": {"author": "Zoe", "editor": "Adam"},
        "Three": {"author": "Adam"},
        "Two": {"author": "Adam", "editor": "Adam"},
    }
    assert found[1]["editor"]["boss"]["name"] == "Zoe"
    assert "password" not in found[1]["editor"]


async def test_one_record_takes_includes_selections_and_filters_too(library: httpx.AsyncClient) -> None:
    [book] = data_of(await library.get("/api/books?filter=title:eq:One"))
    path = f"/api/books/{book['id']}"
    read = data_of(await library.get(f"{path}?include=author,tags&select=title"))
    assert read["author"]["name"] == "Zoe"
    assert [tag["label"] for tag in read["tags"]] == ["red", "blue"]
    assert set(read) == {"title", "author", "tags"}
    assert data_of(await library.get(f"{path}?filter=title:eq:One")) == book
    error_of(await library.get(f"{path}?filter=title:eq:Two"), 404, "NOT_FOUND")
    error_of(await library.get(f"{path}?filter=nothing:eq:1"), 400, "INVALID_QUERY")


async def test_a_selection_has_what_was_asked_for_in_the_order_of_the_declaration(
    library: httpx.AsyncClient,
) -> None:
    found = data_of(await library.get("/api/books?sort=title&select=title,id,title&limit=1&include=author"))
    assert [list(row) for row in found] == [["id", "title"]]
    found = data_of(await library.get("/api/books?sort=title:desc&select=title&include=author&limit=1"))
    assert [{**row, "author": row["author"]["name"]} for row in found] == [{"title": "Two", "author": "Adam"}]
    for wrong in ("nothing", "", "title,", "author.name", "author", "editor"):
        error_of(await library.get(f"/api/books?select={wrong}"), 400, "INVALID_QUERY")


@pytest.mark.parametrize(
    "include", ["nothing", "", "author.", ".author", "author_id", "author.boss.boss", "tags.nothing"]
)
async def test_an_include_that_leads_nowhere_or_too_far_is_400(
    library: httpx.AsyncClient, include: str
) -> None:
    error_of(await library.get(f"/api/books?include={include}"), 400, "INVALID_QUERY")


async def test_a_relation_over_a_hidden_key_does_not_exist_for_clients(library: httpx.AsyncClient) -> None:
    """Whom it leads to would tell the key."""
    for query in (
        "include={}",
        "include=boss.{}",
        "filter={}.name:eq:Zoe",
        "sort={}.name",
        "filter=boss.{}.name:not_null",
    ):
        answers = set()
        for name in ("mentor", "pupils", "nothing"):
            answer = await library.get("/api/authors?" + query.format(name))
            answers.add(error_of(answer, 400, "INVALID_QUERY")["message"].replace(name, "…"))
        assert len(answers) == 1, answers
