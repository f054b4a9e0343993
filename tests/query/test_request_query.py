"""`ctx.query`: what middleware changes of it binds its own request and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from maniflex import Context, Model, Next, Server, belongs_to, field
from maniflex.model.registry import Registry
from maniflex.pipeline.context import RequestQuery
from maniflex.query.parse import parse
from maniflex.query.query import Query
from maniflex.sql.listing import Listing
from maniflex.testing import client
from tests.kit.http import data_of


class Shelf(Model):
    name: str = field(filterable=True, sortable=True)
    tenant: str = field(default="red", filterable=True)


class Jar(Model):
    name: str = field(filterable=True, sortable=True)
    size: int = field(default=0, filterable=True, sortable=True)
    tenant: str = field(default="red", filterable=True)
    shelf_id: str | None = None
    shelf: Shelf | None = belongs_to()


def test_a_query_is_a_value() -> None:
    registry = Registry()
    registry.register(Shelf, Jar)
    metas = {meta.name: meta for meta in registry.seal()}
    query = parse(b"filter=size:gt:1&sort=name", metas["Jar"], metas)

    with pytest.raises(FrozenInstanceError):
        query.page = 2  # type: ignore[misc]  # that is what is tested
    other = query.with_(page=2).with_filter("name", "a").with_sort("size", "desc").with_force("tenant", "red")

    assert isinstance(other, Query)
    assert (other.page, len(other.filters), len(other.sorts), len(other.forced)) == (2, 2, 2, 1)
    assert (query.page, len(query.filters), len(query.sorts), query.forced) == (1, 1, 1, ())
    assert (other.limit, other.select, other.includes) == (query.limit, query.select, query.includes)


def set_page(query: RequestQuery) -> None:
    query.page = 2


def set_limit(query: RequestQuery) -> None:
    query.limit = 1


def clear_filters(query: RequestQuery) -> None:
    query.filters = ()


def clear_sorts(query: RequestQuery) -> None:
    query.sorts = ()


def set_select(query: RequestQuery) -> None:
    name = query.model.field("name")
    assert name is not None
    query.select = (name,)


def clear_includes(query: RequestQuery) -> None:
    query.includes = ()


CHANGES: list[tuple[Callable[[RequestQuery], None], Callable[[Any], object], object]] = [
    (set_page, lambda page: page["meta"]["page"], 2),
    (set_limit, lambda page: page["meta"]["limit"], 1),
    (clear_filters, lambda page: page["meta"]["total"], 5),
    (clear_sorts, lambda page: [jar["size"] for jar in page["data"]], [1, 2]),
    (set_select, lambda page: set(page["data"][0]), {"name", "shelf"}),
    (clear_includes, lambda page: "shelf" in page["data"][0], False),
    (lambda query: query.add_filter("size", 4, "gte"), lambda page: page["meta"]["total"], 1),
    (lambda query: query.force("size", 4, "gte"), lambda page: page["meta"]["total"], 1),
]


@pytest.mark.parametrize("step", ["auth", "service"])
async def test_what_middleware_changes_binds_its_own_request_alone(database_url: str, step: str) -> None:
    server = Server()
    server.register(Shelf, Jar)

    @getattr(server.pipeline, step).middleware(models=[Jar])  # type: ignore[untyped-decorator]  # one of two steps
    async def change(ctx: Context, next: Next) -> None:
        place = ctx.header("x-change")
        if place is not None:
            CHANGES[int(place)][0](ctx.query)
        await next()

    async with client(server, database=database_url) as http:
        shelf = data_of(await http.post("/api/shelves", json={"name": "top"}), 201)
        for size in range(5):
            jar = {"name": f"jar {size}", "size": size, "shelf_id": shelf["id"]}
            data_of(await http.post("/api/jars", json=jar), 201)
        path = "/api/jars?filter=size:gte:1&filter=size:lt:5&sort=size:desc&limit=2&include=shelf"
        plain = (await http.get(path)).json()
        for place, (_, look, expected) in enumerate(CHANGES):
            changed = (await http.get(path, headers={"x-change": str(place)})).json()
            assert look(changed) == expected, place
            assert look(plain) != expected, place
            assert (await http.get(path)).json() == plain, place


async def test_a_bound_list_with_an_include_writes_its_statement_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Listing] = []
    write = Listing._write

    def count(listing: Listing, **options: bool) -> Any:
        written.append(listing)
        return write(listing, **options)

    monkeypatch.setattr(Listing, "_write", count)
    server = Server()
    server.register(Shelf, Jar)

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant", ctx.header("x-tenant") or "red")
        await next()

    @server.pipeline.service.middleware(models=[Jar])
    async def look(ctx: Context, next: Next) -> None:
        await next()
        assert ctx.result is not None

    async with client(server, database=database_url) as http:
        shelf = data_of(await http.post("/api/shelves", json={"name": "top"}), 201)
        data_of(await http.post("/api/jars", json={"name": "jar", "shelf_id": shelf["id"]}), 201)
        for tenant, total in (("red", 1), ("blue", 0), ("red", 1)):
            written.clear()
            asked = "/api/jars?select=name&include=shelf&sort=name"
            page = (await http.get(asked, headers={"x-tenant": tenant})).json()
            assert page["meta"]["total"] == total
            assert len(written) == 1
