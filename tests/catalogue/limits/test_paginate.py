"""D12: smaller pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from maniflex import Context, DeclarationError
from maniflex.middleware import db
from tests.catalogue.limits.shop import Note, asking, shop
from tests.kit.http import created, data_of


@pytest.mark.parametrize(("step", "at"), [("db", "before"), ("deserialize", "after")])
async def test_pages_are_no_larger_than_told(database_url: str, step: str, at: str) -> None:
    server = shop()
    getattr(server.pipeline, step).register(db.paginate(5), models=Note, at=at)
    async with asking(server, database_url) as http:
        for number in range(8):
            await created(http, "/notes", text=f"{number}")
            await created(http, "/tags")
        for query in ("", "?limit=100", "?limit=6&sort=text:asc", ""):
            page = (await http.get(f"/notes{query}")).json()
            assert (len(page["data"]), page["meta"]["limit"], page["meta"]["total"]) == (5, 5, 8)
            assert page["meta"]["pages"] == 2
        assert len((await http.get("/notes?limit=3")).json()["data"]) == 3
        assert len((await http.get("/notes?page=2")).json()["data"]) == 3
        assert len((await http.get("/tags")).json()["data"]) == 8
        assert len((await http.get("/notes/export?format=csv")).text.splitlines()) == 9
        spec = {"group_by": ["text"], "select": [{"op": "count", "as": "n"}]}
        groups = data_of(await http.get("/notes/aggregate", params={"aggregate": json.dumps(spec)}))
        assert len(groups) == 8


async def test_cursor_pages_are_lowered_too(database_url: str) -> None:
    server = shop()
    server.pipeline.db.register(db.paginate(3))
    async with asking(server, database_url) as http:
        for number in range(8):
            await created(http, "/notes", text=f"{number}")
        seen: list[Any] = []
        query = "/notes?cursor=&limit=100"
        while query:
            page = (await http.get(query)).json()
            assert len(page["data"]) <= 3
            seen += [note["id"] for note in page["data"]]
            token = page["meta"].get("next_cursor")
            query = f"/notes?cursor={token}&limit=100" if token else ""
        assert len(set(seen)) == len(seen) == 8


async def test_code_and_queries_that_middleware_changed_are_as_they_were(database_url: str) -> None:
    server = shop()
    server.pipeline.db.register(db.paginate(2))

    @server.pipeline.auth.middleware(models=Note, operations="list")
    async def narrow(ctx: Context, next: Any) -> None:
        ctx.query.add_filter("text", "keep")
        await next()
        ctx.response = None
        assert len(await ctx.db(Note).list()) == 6

    async with asking(server, database_url) as http:
        for text in ("keep", "drop") * 3:
            await created(http, "/notes", text=text)
        page = (await http.get("/notes")).json()
        assert (len(page["data"]), page["meta"]["total"]) == (2, 3)


@pytest.mark.parametrize("most", [0, -1, 2.5, "10"])
def test_a_page_of_nothing_stops_the_start(most: Any) -> None:
    server = shop()
    server.pipeline.db.register(db.paginate(most))
    with pytest.raises(DeclarationError, match="max_limit"):
        server.seal()


def test_in_an_action_it_stops_the_start() -> None:
    server = shop()

    @server.action("GET", "/x", middleware=[db.paginate(3)])
    async def handler(ctx: Context) -> None: ...

    with pytest.raises(DeclarationError, match=r"db\.paginate: it means nothing without a model"):
        server.seal()
