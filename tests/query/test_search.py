"""`?q=` on a list: the same hits in the same order on both databases, whatever is typed."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maniflex import Context, DeclarationError, Model, Next, Server, WithDeletedAt, field
from maniflex.sql.search import STOP_WORDS
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving


class Shelf(Model):
    name: str


class Book(Model, WithDeletedAt):
    title: str = field(searchable=True, sortable=True)
    blurb: str | None = field(searchable=True, default=None)
    kind: str = field(filterable=True, default="novel")
    note: str = ""
    shelf_id: str | None = None


BOOKS = {
    "Running": "run and run and run",
    "Slow life": "a long and winding text about nothing much, in which somebody went for a run",
    "Letters": "ada@example.com wrote to foo-bar, version 2.0, under_score",
    "Umlaut": "Überfahrt nach Ägypten, café",
    "Hindi": "हिन्दी में",
    "Empty": None,
}


async def fill(http: httpx.AsyncClient, **fields: Any) -> None:
    for title, blurb in BOOKS.items():
        await created(http, "/api/books", title=title, blurb=blurb, **fields)


async def titles(http: httpx.AsyncClient, q: str, **more: Any) -> list[str]:
    answer = await http.get("/api/books", params={"q": q, **more})
    found = [book["title"] for book in data_of(answer)]
    if "limit" not in more:
        assert answer.json()["meta"]["total"] == len(found)
    return found


MEANS = {
    "run": ["Running", "Slow life"],
    "RUNS running": ["Running", "Slow life"],
    "the run": ["Running", "Slow life"],  # words without weight neither find nor hinder
    "run nothing": ["Slow life"],
    "run unicorn": [],
    "ada": ["Letters"],
    "ada@example.com": ["Letters"],
    "example": ["Letters"],
    "bar": ["Letters"],
    "foo-bar": ["Letters"],
    "bar foo": ["Letters"],
    "score": ["Letters"],
    "2": ["Letters"],
    "ÜBERFAHRT": ["Umlaut"],
    "café": ["Umlaut"],
    "run\U0001f680": ["Running", "Slow life"],
    "run\ue000²": ["Running", "Slow life"],
    "हिन्दी": ["Hindi"],
    "हि": [],
    "cafe": [],
    "the": [],
    "!?*": [],
    "…": [],
    "run …": ["Running", "Slow life"],
    '"run': ["Running", "Slow life"],
    "run*": ["Running", "Slow life"],
    "run OR unicorn": [],  # all words must occur, and no word commands
    "NOT unicorn": [],
    "title:run": [],
    "NEAR(run, 2)": [],
    "-run": ["Running", "Slow life"],
    "'; DROP TABLE books; --": [],
}


async def test_a_text_finds_the_same_records_in_the_same_order_on_both_databases(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        await fill(http)

        found = {q: await titles(http, q) for q in MEANS}

    assert found == MEANS


async def test_a_blank_text_is_ignored(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        await fill(http)

        assert len(await titles(http, " ")) == len(BOOKS)


async def test_an_explicit_sort_wins_over_relevance_and_equal_relevance_goes_by_id(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        await fill(http)
        twins = [(await created(http, "/api/books", title="Twin"))["id"] for _ in range(5)]

        sorted_by_title = await titles(http, "run", sort="title:desc")
        listed = data_of(await http.get("/api/books?q=twin"))

    assert sorted_by_title == ["Slow life", "Running"]
    assert [book["id"] for book in listed] == sorted(twins)


async def test_a_search_is_narrowed_by_filters_and_pages_with_its_own_total(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        await fill(http)
        for number in range(7):
            await created(http, "/api/books", title=f"Poem {number}", blurb="running water", kind="poem")

        pages = [
            await http.get(f"/api/books?q=run&filter=kind:eq:poem&limit=3&page={page}")
            for page in (1, 2, 3, 4)
        ]
        shown = [book["title"] for page in pages for book in data_of(page)]

    assert [len(data_of(page)) for page in pages] == [3, 3, 1, 0]
    assert [page.json()["meta"]["total"] for page in pages] == [7, 7, 7, 7]
    assert sorted(shown) == [f"Poem {number}" for number in range(7)]


async def test_a_search_goes_with_select_and_include(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        shelf = await created(http, "/api/shelves", name="top")
        await fill(http, shelf_id=shelf["id"])

        [first, _] = data_of(await http.get("/api/books?q=run&select=title&include=shelf"))

    assert (first["title"], first["shelf"]["name"]) == ("Running", "top")
    assert "blurb" not in first


async def test_the_index_follows_every_write_also_raw_sql(database_url: str) -> None:
    server = Server()
    server.register(Book, Shelf)
    async with client(server, database=database_url) as http:
        book = await created(http, "/api/books", title="Alpha")
        other = await created(http, "/api/books", title="Beta")
        await http.patch(f"/api/books/{book['id']}", json={"title": "Gamma", "note": "Delta"})
        after_update = [await titles(http, q) for q in ("alpha", "gamma", "delta")]

        await server.raw_exec("UPDATE books SET blurb = ? WHERE title = ?", "omega", "Beta")
        after_raw = await titles(http, "omega")
        await server.raw_exec("UPDATE books SET id = ? WHERE id = ?", "moved", other["id"])
        moved = data_of(await http.get("/api/books?q=omega"))

        await http.delete(f"/api/books/{book['id']}")
        after_delete = await titles(http, "gamma")
        await server.raw_exec("DELETE FROM books WHERE id = ?", "moved")
        after_raw_delete = await titles(http, "omega")

    assert after_update == [[], ["Gamma"], []]
    assert after_raw == ["Beta"]
    assert [row["id"] for row in moved] == ["moved"]
    assert after_delete == after_raw_delete == []


async def test_a_replaced_row_is_found_by_its_new_text_only(sqlite_url: str) -> None:
    server = Server()
    server.register(Book, Shelf)
    replace = (
        "INSERT OR REPLACE INTO books (id, title, kind, note, created_at, updated_at)"
        " SELECT id, ?, kind, note, created_at, updated_at FROM books WHERE title = ?"
    )
    async with client(server, database=sqlite_url) as http:
        await created(http, "/api/books", title="Old")
        await created(http, "/api/books", title="Bystander")

        await server.raw_exec(replace, "New", "Old")
        await created(http, "/api/books", title="Third")
        found = [await titles(http, q) for q in ("old", "new", "bystander", "third")]

    assert found == [[], ["New"], ["Bystander"], ["Third"]]


async def test_a_search_works_after_vacuum(sqlite_url: str) -> None:
    async with serving(sqlite_url, Book, Shelf) as http:
        await fill(http)
        for title in ("Running", "Empty"):
            [row] = [b for b in data_of(await http.get("/api/books")) if b["title"] == title]
            await http.delete(f"/api/books/{row['id']}")
    server = Server(sqlite_url)
    server.register(Book, Shelf)
    async with client(server, database=sqlite_url) as http:
        await server.raw_exec("DELETE FROM books WHERE deleted_at IS NOT NULL")

    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("VACUUM")
    connection.close()

    async with serving(sqlite_url, Book, Shelf) as http:
        assert await titles(http, "run") == ["Slow life"]
        assert await titles(http, "ada") == ["Letters"]


async def test_a_forced_scope_binds_a_search_and_its_total(database_url: str) -> None:
    server = Server()
    server.register(Book, Shelf)

    async def scoped(ctx: Context, next: Next) -> None:
        if kind := ctx.header("x-kind"):
            ctx.query.force("kind", kind)
        await next()

    server.pipeline.auth.register(scoped, models=[Book])
    async with client(server, database=database_url) as http:
        await fill(http)
        await created(http, "/api/books", title="Poem", blurb="run", kind="poem")

        answers = [
            await http.get("/api/books?q=run" + more, headers={"x-kind": "poem"})
            for more in ("", "&sort=title", "&page=9", "&filter[0]=kind:eq:novel&filter[0]=kind:eq:poem")
        ]

    assert [[row["title"] for row in data_of(a)] for a in answers] == [["Poem"], ["Poem"], [], ["Poem"]]
    assert [a.json()["meta"]["total"] for a in answers] == [1, 1, 1, 1]


FOREIGN_TEXTS = {
    "rare words": "apple " * 3,
    "other rare words": "pear " * 3,
    "long texts": "filler " * 4000,
    "short texts": "x",
}


@pytest.mark.parametrize("text", FOREIGN_TEXTS.values(), ids=FOREIGN_TEXTS)
async def test_texts_outside_the_scope_change_neither_order_nor_scores(database_url: str, text: str) -> None:
    server = Server()
    server.register(Book, Shelf)

    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("kind", "mine")
        await next()

    @server.action("GET", "/hits")
    async def hits(ctx: Context) -> object:
        ctx.query.force("kind", "mine")
        return await ctx.search(ctx.query_param("q"), models=[Book])

    server.pipeline.auth.register(bind, models=[Book])
    async with client(server, database=database_url) as http:
        for number in range(12):
            few, many = 1 + number % 3, 1 + number % 5
            words = f"{'apple ' * few}{'word ' * (number * 17 % 29)}{'pear ' * many}"
            await created(http, "/api/books", title=f"{number}", blurb=words, kind="mine")

        async def seen() -> list[Any]:
            answers: list[Any] = [await titles(http, q) for q in ("apple", "pear", "apple pear", "word")]
            return [*answers, *[data_of(await http.get(f"/api/hits?q={q}")) for q in ("apple", "pear")]]

        before = await seen()
        async with server.transaction():
            for number in range(60):
                await server.db(Book).create(title=f"foreign {number}", blurb=text, kind="foreign")

        assert len(before[0]) == 12
        assert await seen() == before


async def test_forms_of_a_letter_are_found_by_each_other(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        for title in ("ΟΔΟΣ", "οδος", "οδοσ", "5 µm", "5 μm"):
            await created(http, "/api/books", title=title)

        for q in ("ΟΔΟΣ", "οδος", "οδοσ"):
            assert sorted(await titles(http, q)) == sorted(["ΟΔΟΣ", "οδος", "οδοσ"]), q
        for q in ("µm", "μm"):
            assert sorted(await titles(http, q)) == sorted(["5 µm", "5 μm"]), q


async def test_what_cannot_be_searched_is_refused(database_url: str) -> None:
    async with serving(database_url, Book, Shelf) as http:
        refused = [
            await http.get("/api/shelves?q=top"),
            await http.get("/api/books?q=run&cursor="),
            await http.get("/api/books", params={"q": "x" * 501}),
        ]

    for answer in refused:
        error_of(answer, 400, "INVALID_QUERY")


async def test_middleware_that_searches_what_cannot_be_searched_is_refused(database_url: str) -> None:
    server = Server()
    server.register(Book, Shelf)

    async def searching(ctx: Context, next: Next) -> None:
        ctx.query.search = "anything"
        await next()

    server.pipeline.service.register(searching, models=[Shelf])
    async with client(server, database=database_url) as http:
        error_of(await http.get("/api/shelves"), 400, "INVALID_QUERY")


@pytest.mark.parametrize("option", ["hidden", "writeonly", "encrypted"])
def test_a_secret_refuses_to_be_searchable(option: str) -> None:
    secret: Any = {option: True}

    class Letter(Model):
        text: str = field(searchable=True, **secret)  # type: ignore[misc]  # one test for three options

    server = Server()
    server.register(Letter)

    with pytest.raises(DeclarationError, match="searchable"):
        server.seal()


async def test_a_very_long_text_is_stored_and_found_by_what_is_near_its_start(database_url: str) -> None:
    many_words = " ".join(f"w{number:x}" for number in range(400_000))
    async with serving(database_url, Book, Shelf, max_body_size=20_000_000) as http:
        await created(http, "/api/books", title="Long", blurb="beginning " + many_words)

        assert await titles(http, "beginning") == ["Long"]
        assert await titles(http, "wffff0") == []


SIGNS = st.sampled_from(["run", "ada", "the", "AND", "OR", "NOT", "NEAR", *"\"'*():-^+{}%_\\"])
TEXTS = st.one_of(
    st.text(max_size=60), st.lists(SIGNS, max_size=8).map(" ".join), st.lists(SIGNS).map("".join)
)


async def test_any_text_is_a_valid_search_and_finds_the_same_on_both(
    sqlite_url: str, postgres_url: str, long_mode: bool
) -> None:
    loop = asyncio.get_running_loop()
    async with serving(sqlite_url, Book, Shelf) as one, serving(postgres_url, Book, Shelf) as two:
        await fill(one)
        await fill(two)

        @settings(
            max_examples=2_000 if long_mode else 200,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(TEXTS)
        def agree(text: str) -> None:
            text = text.replace("\x00", "")[:500]
            asked = [asyncio.run_coroutine_threadsafe(_outcome(http, text), loop) for http in (one, two)]
            first, second = (future.result(30) for future in asked)
            assert first == second, ascii(text)
            assert first[0] == 200

        with ThreadPoolExecutor(1) as pool:
            await loop.run_in_executor(pool, agree)


async def _outcome(http: httpx.AsyncClient, text: str) -> tuple[int, list[str]]:
    answer = await http.get("/api/books", params={"q": text, "sort": "title"})
    return answer.status_code, [book["title"] for book in answer.json().get("data", [])]


async def test_the_words_that_are_left_out_are_those_postgres_leaves_out(postgres_url: str) -> None:
    async with Server(postgres_url).lifespan() as server:
        found = await server.raw_query(
            "SELECT word FROM unnest(?::text[]) word WHERE ts_lexize('english_stem', word) <> '{}'",
            [*STOP_WORDS, "run"],
        )

    assert [row["word"] for row in found] == ["run"]
