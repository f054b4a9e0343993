"""What asking costs: reading a query string, writing its statement once, and a deep page like the first."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from maniflex import Model, Server, field, has_many
from maniflex.query import cursor
from maniflex.query.parse import parse
from maniflex.sql import statement as statements
from maniflex.testing import client
from tests.kit.http import data_of
from tests.kit.internals import adapter_of
from tests.kit.statements import rows_examined, sqlite_plan

ASKED = (
    b"filter=status:eq:published&filter=views:gt:100&filter=created_at:gte:2026-01-01"
    b"&sort=views:desc,created_at&include=author"
)
MOST_UNITS = 28  # of the ordinary work below


class Author(Model):
    name: str = field(filterable=True, sortable=True)
    posts: list[Post] = has_many()


class Post(Model, cursor_field="views"):
    status: str = field(filterable=True)
    views: int = field(filterable=True, sortable=True)
    author_id: str | None = field(default=None, filterable=True)


def ratio(call: Callable[[], object], other: Callable[[], object], turns: int = 60) -> float:
    """How many times the CPU of the other it takes, in turns: whatever slows one of them slows both."""
    return statistics.median(_turn(call) / _turn(other) for _ in range(turns))


def _turn(call: Callable[[], object], calls: int = 200) -> float:
    before = time.process_time()
    for _ in range(calls):
        call()
    return time.process_time() - before


def unit() -> object:
    """A piece of ordinary work that says how fast this machine is."""
    return json.loads('{"a": [1, 2, 3], "b": {"c": "d"}}')


def test_reading_three_filters_two_sorts_and_an_include_is_cheap(
    record_property: Callable[[str, object], None],
) -> None:
    server = Server(database=":memory:")
    server.register(Author, Post)
    server.seal()
    store = server._seal().runtime.store(Post)
    query = parse(ASKED, store.meta, store.models)
    assert (len(query.filters), len(query.sorts), len(query.includes)) == (3, 2, 1)

    first = ratio(lambda: parse(ASKED, store.meta, store.models), unit)
    again = ratio(lambda: store.query(ASKED), unit)

    record_property("units", f"{first:.1f} read, {again:.1f} remembered")
    assert first <= MOST_UNITS
    assert again <= first / 4


REPEATED = (
    "",
    "filter=views:gt:{}",
    "filter=views:in:{},5,6",
    "filter=views:in:{}",
    "filter[0]=views:eq:{}&filter[0]=status:eq:x{}",
    "filter=author.name:eq:{}&sort=author.name,views:desc",
    "filter=status:contains:{}&include=author.posts",
    "select=views&filter=views:between:{},9",
    "page={}&limit=3",
    "cursor=&limit={}",
)


async def test_a_shape_that_was_asked_before_is_never_written_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    compile_once = statements.compile_statement

    def noted(*arguments: Any) -> statements.Compiled:
        made = compile_once(*arguments)
        written.append(made.text)
        return made

    for module in ("listing", "select"):
        monkeypatch.setattr(f"maniflex.sql.{module}.compile_statement", noted)
    server = Server()
    server.register(Author, Post)
    async with client(server, database=database_url) as http:
        author = data_of(await http.post("/api/authors", json={"name": "a"}), 201)
        for views in range(20):
            await http.post("/api/posts", json={"status": "x", "views": views, "author_id": author["id"]})
        for value in (2, 3):
            for query in REPEATED:
                assert (await http.get("/api/posts?" + query.format(value, value))).status_code == 200
            if value == 2:
                assert written
                written.clear()
    assert written == []


# -- keyset pages


NUMBERED = {
    "sqlite": "PRINTF('%012d', n), 'x', n / 100, NULL, '{0}', '{0}' FROM numbers",
    "postgresql": "LPAD(CAST(n AS TEXT), 12, '0'), 'x', n / 100, NULL,"
    " CAST('{0}' AS TIMESTAMPTZ), CAST('{0}' AS TIMESTAMPTZ) FROM numbers",
}


async def filled(server: Server, rows: int) -> None:
    """Many posts, a hundred to a value; the id is the number of the row."""
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
    columns = "INSERT INTO posts (id, status, views, author_id, created_at, updated_at)"
    selected = NUMBERED[adapter_of(server).dialect].format("2026-01-01T00:00:00.000000Z")
    await server.raw_exec(f"{columns} {numbers} SELECT {selected}", rows - 1)
    await server.raw_exec("ANALYZE posts")


def token_at(server: Server, place: int) -> str:
    """The cursor that goes on after the row of that number."""
    query = server._seal().runtime.store(Post).query(b"cursor=")
    return cursor.write(query, place // 100, f"{place:012}", backwards=False)


def statement(server: Server, token: str) -> tuple[str, tuple[Any, ...]]:
    store = server._seal().runtime.store(Post)
    return store.listings.get(f"cursor={token}&limit=20".encode()).rows()


async def test_the_first_and_a_deep_keyset_page_take_the_same_way_through_an_index(database_url: str) -> None:
    server = Server()
    server.register(Author, Post)
    async with client(server, database=database_url) as http:
        await filled(server, 50_000)
        deep = token_at(server, 45_000)
        page = (await http.get(f"/api/posts?cursor={deep}&limit=20")).json()
        assert [int(row["id"]) for row in page["data"]] == list(range(45_001, 45_021))
        pages = [statement(server, token) for token in ("", deep)]
        if database_url.startswith("postgres"):
            assert [await rows_examined(database_url, *asked) for asked in pages] == [21, 21]
        else:
            for asked in pages:
                plan = sqlite_plan(database_url, *asked)
                assert "idx_posts_views_id" in plan
                assert "TEMP B-TREE" not in plan
            assert "SEARCH" in plan


@pytest.mark.long
async def test_page_5000_of_a_million_rows_costs_what_the_first_does(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    server = Server()
    server.register(Author, Post)
    async with client(server, database=database_url) as http:
        await filled(server, 1_000_000)
        urls = [f"/api/posts?cursor={token}&limit=20" for token in ("", token_at(server, 100_000))]
        for _ in range(3):
            costs: list[list[float]] = [[], []]
            for _ in range(60):
                for place, url in enumerate(urls):
                    before = time.perf_counter()
                    for _ in range(5):
                        await http.get(url)
                    costs[place].append(time.perf_counter() - before)
            first, deep = (min(c) / 5 * 1e6 for c in costs)
            if deep <= first * 1.2:
                break
        record_property("microseconds", f"{first:.0f} first, {deep:.0f} page 5,000")
        assert deep <= first * 1.2
