"""The picker on a table that is too large to look for parts of words in every row."""

from __future__ import annotations

import pytest

from maniflex import Model, Server, field
from maniflex.admin import search
from tests.kit.panel import Browser, visiting


class Person(Model):
    email: str = field(unique=True, filterable=True)
    city: str = field(default="", filterable=True)


async def picks(browser: Browser, text: str) -> list[str]:
    answer = await browser.http.get("/admin/-/pick/people", params={"q": text}, headers={"x-fragment": "1"})
    return [hit["label"] for hit in answer.json()]


async def test_a_large_table_is_searched_by_whole_values_that_have_an_index(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    server.register(Person)
    server.admin()
    async with visiting(server, database_url) as browser:
        for n in range(5):
            await server.db(Person).create(email=f"p{n}@example.org", city="Berlin")
        assert await picks(browser, "p3@") == ["p3@example.org"]
        monkeypatch.setattr(search, "MOST_COUNTED", 3)
        assert await picks(browser, "p3@") == []
        assert await picks(browser, "p3@example.org") == ["p3@example.org"]
        assert await picks(browser, "Berlin") == []
        assert len(await picks(browser, "")) == 5
