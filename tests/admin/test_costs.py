"""What the panel costs, counted in calls of Python functions: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

from maniflex import Server
from maniflex.testing import client
from tests.kit.bookshop import Author, Book, BookTag, Tag, make_shop
from tests.kit.panel import visiting


async def calls_of(work: Callable[[], Awaitable[Any]]) -> int:
    """How many functions are called on the thread of the loop; the least of eight, as loops work, too."""
    counts = []
    for _ in range(8):
        count = 0

        def note(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            await work()
        finally:
            sys.setprofile(None)
        counts.append(count)
    return min(counts)


def make_bare() -> Server:
    server = Server(storage="memory:")
    server.register(Author, Tag, BookTag, Book)
    return server


async def test_a_panel_that_nobody_uses_costs_requests_nothing(sqlite_url: str) -> None:
    counts: list[int] = []
    for number, make in enumerate((make_bare, make_shop)):
        server = make()
        async with client(server, database=sqlite_url.replace("test.db", f"{number}.db")) as http:
            author = await server.db(Author).create(name="Ada")
            paths = (f"/api/authors/{author.id}", "/api/authors")
            counts += [await calls_of(partial(http.get, path)) for path in paths]
    bare, with_panel = sum(counts[:2]), sum(counts[2:])
    assert with_panel <= bare * 1.01, (bare, with_panel)


async def test_a_list_of_twenty_costs_little_beyond_the_request_of_the_api(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        author = await server.db(Author).create(name="Ada")
        for number in range(20):
            await server.db(Book).create(title=f"Book {number}", author_id=author.id)
        api = await calls_of(lambda: browser.http.get("/api/books?include=author"))
        panel = await calls_of(lambda: browser.http.get("/admin/books"))
        assert panel - api < 33_000, (panel, api)  # 21,000 took 5.4 ms of a processor
