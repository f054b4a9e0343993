"""Values that are unique within a scope, and one-row models that every tenant has of its own."""

from __future__ import annotations

import asyncio

import pytest

from maniflex import Context, DeclarationError, Model, Next, Server, WithDeletedAt, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving


async def by_tenant(ctx: Context, next: Next) -> None:
    tenant = ctx.header("x-tenant")
    if tenant:
        ctx.query.force("tenant_id", tenant)
    await next()


class Page(Model, WithDeletedAt):
    tenant_id: str = field(default="", column="tenant", relation=None)
    year: int = 2026
    slug: str = field(unique="tenant_id", alias="Slug")
    number: int | None = field(default=None, unique=("tenant_id", "year"))


async def test_a_value_is_unique_among_rows_of_one_scope(database_url: str) -> None:
    async with serving(database_url, Page) as http:
        first = await created(http, "/api/pages", tenant_id="a", Slug="x")
        await created(http, "/api/pages", tenant_id="b", Slug="x")
        again = await http.post("/api/pages", json={"tenant_id": "a", "Slug": "x"})
        assert [d["field"] for d in error_of(again, 409, "CONFLICT")["details"]] == ["Slug"]
        await http.delete(f"/api/pages/{first['id']}")
        await created(http, "/api/pages", tenant_id="a", Slug="x")


async def test_it_may_be_unique_within_several_fields(database_url: str) -> None:
    async with serving(database_url, Page) as http:
        await created(http, "/api/pages", tenant_id="a", Slug="1", number=1)
        await created(http, "/api/pages", tenant_id="a", Slug="2", number=1, year=2027)
        await created(http, "/api/pages", tenant_id="b", Slug="3", number=1)
        again = await http.post("/api/pages", json={"tenant_id": "a", "Slug": "4", "number": 1})
        assert [d["field"] for d in error_of(again, 409, "CONFLICT")["details"]] == ["number"]


async def test_another_tenant_learns_nothing_of_taken_values(database_url: str) -> None:
    server = Server()
    server.register(Page)
    server.pipeline.auth.register(by_tenant)
    async with client(server, database=database_url) as http:
        for tenant in ("a", "b"):
            response = await http.post("/api/pages", json={"Slug": "x"}, headers={"x-tenant": tenant})
            assert data_of(response, 201)["tenant_id"] == tenant


@pytest.mark.parametrize(
    ("unique", "problem"),
    [
        ("tenat_id", r"slug: unique: Wrong has no field 'tenat_id'; did you mean 'tenant_id'"),
        ("slug", r"slug: unique: slug cannot be what it is unique within"),
        ("id", r"slug: unique: id cannot be"),
        ("more", r"slug: unique: more cannot be"),
        (("tenant_id", "tenant_id"), r"slug: unique: tenant_id cannot be"),
        ((), r"slug: unique must be True, False, or the fields"),
        (3, r"slug: unique must be True, False, or the fields"),
        ("", r"slug: unique must be True, False, or the fields"),
    ],
)
def test_a_scope_that_cannot_be_stops_the_start(unique: object, problem: str) -> None:
    class Wrong(Model):
        tenant_id: str = field(default="", relation=None)
        more: dict[str, int] = field(default_factory=dict)
        slug: str = field(unique=unique)  # type: ignore[call-overload]  # what is tested

    server = Server()
    server.register(Wrong)
    with pytest.raises(DeclarationError, match=problem):
        server.seal()


class Settings(Model, singleton=True, table="settings"):
    tenant_id: str | None = field(default=None, relation=None)
    title: str = field(default="untitled", unique="tenant_id")


async def test_every_tenant_has_its_own_row(database_url: str) -> None:
    server = Server()
    server.register(Settings)
    server.pipeline.auth.register(by_tenant)
    async with client(server, database=database_url) as http:
        first = data_of(await http.patch("/api/settings", json={"title": "A"}, headers={"x-tenant": "a"}))
        second = data_of(await http.get("/api/settings", headers={"x-tenant": "b"}))
        shared = data_of(await http.get("/api/settings"))
        assert (first["tenant_id"], first["title"]) == ("a", "A")
        assert (second["tenant_id"], second["title"]) == ("b", "untitled")
        assert (shared["tenant_id"], shared["id"]) == (None, "singleton")
        assert len({first["id"], second["id"], shared["id"]}) == 3

        again = await http.patch("/api/settings", json={"title": "A"}, headers={"x-tenant": "a"})
        assert data_of(again)["id"] == first["id"]
        moved = await http.patch("/api/settings", json={"tenant_id": "b"}, headers={"x-tenant": "a"})
        assert data_of(moved)["tenant_id"] == "a"


async def test_a_scope_that_settles_no_row_finds_none(database_url: str) -> None:
    async def loosely(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ("a", "b"), "in")
        await next()

    server = Server()
    server.register(Settings)
    server.pipeline.auth.register(loosely)
    async with client(server, database=database_url) as http:
        for _ in range(2):
            error_of(await http.get("/api/settings"), 404, "NOT_FOUND")
        assert await server.db(Settings).count() == 0


async def test_many_first_requests_of_a_tenant_make_one_row(database_url: str) -> None:
    server = Server()
    server.register(Settings)
    server.pipeline.auth.register(by_tenant)
    async with client(server, database=database_url) as http:
        calls = [http.get("/api/settings", headers={"x-tenant": str(n % 3 + 1)}) for n in range(18)]
        answers = await asyncio.gather(*calls)
        assert {answer.status_code for answer in answers} == {200}
        assert await server.db(Settings).count() == 3


async def test_a_row_that_cannot_be_made_says_why(database_url: str) -> None:
    server = Server()
    server.register(Settings)
    server.pipeline.auth.register(by_tenant)
    async with client(server, database=database_url) as http:
        await server.db(Settings).create(id="taken", tenant_id="a", title="untitled")
        error_of(await http.get("/api/settings", headers={"x-tenant": "a"}), 409, "CONFLICT")
        assert await server.db(Settings).count() == 1
