"""Lists of the panel: keyset pages, filters, order, search, cells, columns, totals that end somewhere."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from maniflex import Server
from maniflex.model.meta import Kind
from tests.kit.bookshop import Author, Book, make_shop
from tests.kit.panel import Browser, text_of, visiting
from tests.kit.statements import statements_of

_NEXT = re.compile(r'href="([^"]+)" rel="next_page"')
_PREVIOUS = re.compile(r'href="([^"]+)" rel="previous_page"')
_LAST = re.compile(r'href="([^"]+)" rel="last_page"')


def titles_of(page: str) -> list[str]:
    """The first cells of the rows."""
    plain = page.replace("<mark>", "").replace("</mark>", "")
    return re.findall(r'data-label="Title"><a href="[^"]+"><span>([^<]*)</span>', plain)


def link(pattern: re.Pattern[str], page: str) -> str | None:
    match = pattern.search(page)
    return None if match is None else match[1].replace("&amp;", "&").removeprefix("/admin")


async def fill(server: Server, count: int = 45) -> None:
    for n in range(count):
        subtitle = None if n % 3 else f"part {n % 4}"
        await server.db(Book).create(
            title=f"Book {n:02}", stock=n % 7, subtitle=subtitle, price=Decimal(n) / 4
        )


async def walk(browser: Browser, path: str) -> list[str]:
    """The titles of all pages, by the links to the next ones."""
    titles: list[str] = []
    here: str | None = path
    for _ in range(20):
        if here is None:
            break
        page = await browser.get(here)
        titles += titles_of(page)
        here = link(_NEXT, page)
    return titles


@pytest.mark.parametrize(
    "sort", ["", "title:asc", "stock:asc", "stock:desc", "subtitle:asc", "subtitle:desc"]
)
async def test_pages_show_every_row_once_forwards_and_backwards(database_url: str, sort: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await fill(server)
        path = f"/books?sort={sort}" if sort else "/books"
        titles = await walk(browser, path)
        assert len(titles) == len(set(titles)) == 45
        last = await browser.get(f"{path}{'&' if sort else '?'}last=1")
        back = titles_of(last)
        assert link(_NEXT, last) is None
        while (before := link(_PREVIOUS, last)) is not None:
            last = await browser.get(before)
            back = titles_of(last) + back
        assert back == titles
        api = (await browser.http.get(f"/api/books?limit=45&sort={sort or 'title:desc'}")).json()["data"]
        if sort.startswith("title") or not sort:
            assert titles == [book["title"] for book in api]


async def test_a_page_number_still_works(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        await fill(server)
        page = await browser.get("/books?sort=title:asc&page=3")
        assert titles_of(page) == [f"Book {n:02}" for n in range(40, 45)]
        await browser.get("/books?page=501", 400)
        await browser.get("/books?page=x", 400)


async def test_filters_ask_what_the_api_would_be_asked(database_url: str) -> None:
    server = make_shop(time_zone="Europe/Berlin")
    async with visiting(server, database_url) as browser:
        author = await server.db(Author).create(name="Ursula")
        day = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)  # the 2nd of March in Berlin
        await server.db(Book).create(title="Right", status="published", author_id=author.id, published_at=day)
        await server.db(Book).create(title="Wrong", price=Decimal(20), stock=3, subtitle="")
        for query, titles in {
            "f_status=published": ["Right"],
            "f_status=draft&f_status=published": ["Wrong", "Right"],
            "f_price~gte=10": ["Wrong"],
            "f_title~contains=igh": ["Right"],
            f"f_author_id={author.id}": ["Right"],
            "f_author.name~contains=rsul": ["Right"],
            "f_subtitle~is_null=1": ["Right"],
            "f_subtitle~not_null=1": ["Wrong"],
            "f_published_at~gte=2026-03-02&f_published_at~lte=2026-03-02": ["Right"],
            "f_published_at~lte=2026-03-01": [],
            "f_sold=true": [],
            "f_title=": ["Wrong", "Right"],
            "q=rong": ["Wrong"],
        }.items():
            assert titles_of(await browser.get(f"/books?{query}")) == titles, query
        today = datetime.now(UTC)
        await server.db(Book).create(title="New", published_at=today - timedelta(days=3))
        assert titles_of(await browser.get("/books?f_published_at~since=7d")) == ["New"]


@pytest.mark.parametrize(
    "query",
    [
        "f_nope=1",
        "f_pin=1",
        "f_internal~contains=h",
        "f_title~like_this=x",
        "f_price~gte=dear",
        "sort=nope",
        "sort=pin:asc",
        "sort=author.name",
        "columns=nope",
        "columns=internal",
        "after=%21%21",
        "f_published_at~since=always",
    ],
)
async def test_what_may_not_be_asked_is_refused_by_name(sqlite_url: str, query: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        page = text_of(await browser.get(f"/books?{query}", 400))
        name = query.partition("=")[0].removeprefix("f_").partition("~")[0]
        assert "INVALID_QUERY" in page
        assert name in page or query.partition("=")[2].partition(":")[0] in page


async def test_totals_are_counted_up_to_a_limit(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maniflex.admin.visit.MOST_COUNTED", 30)
    monkeypatch.setattr("maniflex.admin.lists.total_text.__defaults__", (30,), raising=False)
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await fill(server)
        with statements_of(server) as seen:
            page = await browser.get("/books")
        assert "30+ records" in text_of(page)
        counts = [text for text in seen if "count(" in text.lower()]
        assert counts
        assert all("limit" in text.lower() for text in counts)


async def test_relations_come_in_one_statement_each(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        for n in range(20):
            author = await server.db(Author).create(name=f"Author {n}")
            await server.db(Book).create(title=f"Book {n}", author_id=author.id)
        await browser.get("/books?columns=title,author_id")
        with statements_of(server) as seen:
            page = await browser.get("/books?columns=title,author_id")
        assert "Author 19" in text_of(page)
        about_data = [text for text in seen if "admin_" not in text]
        assert len(about_data) <= 3, about_data


async def test_cells_show_values_by_their_kind(sqlite_url: str) -> None:
    server = make_shop(time_zone="Europe/Berlin")
    async with visiting(server, sqlite_url) as browser:
        await server.db(Book).create(
            title="x" * 60,
            price=Decimal("1234567.10"),
            subtitle="",
            sold=True,
            extra={"long": "y" * 100},
            published_at=datetime(2026, 7, 1, 10, tzinfo=UTC),
        )
        page = await browser.get("/books?columns=title,status,price,subtitle,sold,extra,published_at,weight")
        text = text_of(page)
        assert "1,234,567.10" in text
        assert 'class="null">""<' in page
        assert 'class="null">null<' in page
        assert 'aria-label="true"' in page
        assert "2026-07-01 12:00" in text
        assert 'title="2026-07-01T10:00:00Z"' in page
        assert 'class="badge c0">draft' in page
        assert "…" in text


async def test_columns_are_chosen_and_remembered(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await fill(server, 1)
        await browser.get("/books")
        await browser.send("/-/views", {"model": "books", "columns": ["title", "stock"], "query": ""})
        page = await browser.get("/books")
        assert re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([A-Z][a-z]+)', page) == ["Title", "Stock"]
        await browser.send(
            "/-/views", {"model": "books", "name": "cheap", "query": "f_price~lte=5", "shared": "1"}
        )
        assert "cheap" in await browser.get("/books")
        assert "cheap" in await browser.get("/-/views")


async def test_a_text_that_is_too_long_is_refused_not_cut(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await fill(server, 1)
        [book] = await server.db(Book).list()
        await browser.get(f"/books/{book.id}/delete")
        refusal = await browser.post("/-/views", {"model": "books", "name": "x" * 101, "query": ""})
        assert refusal.status_code == 422
        assert "At most 100 characters." in text_of(refusal.text)
        refusal = await browser.post(f"/books/{book.id}/delete", {"reason": "x" * 501})
        assert refusal.status_code == 422
        assert await server.db(Book).count() == 1
        assert "xxx" not in await browser.get("/-/views")
        await browser.send("/-/views", {"model": "books", "name": "\U0001f4d6" * 100, "query": ""})


async def test_empty_lists_say_what_to_do(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/books")
        assert "There are no Books yet" in text_of(page)
        assert 'href="/admin/books/new"' in page
        assert "Nothing matches" in text_of(await browser.get("/books?f_title=x"))


async def test_the_picker_offers_few_and_finds_by_letters(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        for n in range(30):
            await server.db(Author).create(name=f"Author {n:02}")
        headers = {"x-fragment": "1"}
        hits = (await browser.http.get("/admin/-/pick/authors", headers=headers)).json()
        assert len(hits) == 20
        [hit] = (await browser.http.get("/admin/-/pick/authors?q=author+07", headers=headers)).json()
        assert hit["label"] == "Author 07"
        assert "Author 07" in text_of(await browser.get("/-/pick/authors?q=07"))  # without scripts
        assert "Author 07" in text_of(await browser.get("/-/search?q=author+07"))
        await browser.get("/-/pick/nope", 404)


async def test_export_is_that_of_the_api(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await fill(server, 5)
        panel = await browser.http.get("/admin/books/export?f_stock~gte=2&sort=title:desc&format=csv")
        api = await browser.http.get("/api/books/export?filter=stock:gte:2&sort=title:desc&format=csv")
        assert (panel.status_code, panel.content) == (200, api.content)
        await browser.get("/authors/export", 404)


def test_every_kind_of_field_has_a_cell_a_filter_and_a_widget() -> None:
    from maniflex.admin.lists import _KINDS
    from maniflex.admin.widgets import _CELLS, WIDGETS

    for table in (_CELLS, _KINDS, WIDGETS):
        assert set(table) == set(Kind)
