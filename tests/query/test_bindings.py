"""Forced scopes where they are easily forgotten: contradictions, actions, other models, other types."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from maniflex import Context, InvalidQuery, Model, Next, Server, field, has_many
from maniflex.testing import client
from tests.kit.http import error_of


class Org(Model):
    tenant_id: str = field(filterable=True)
    name: str = field(default="", filterable=True)
    parent_id: str | None = field(default=None, relation=None)
    secret: str = field(default="HIDDEN", hidden=True)
    pays: list[Pay] = has_many()


class Plain(Model):
    name: str = field(default="", filterable=True)


class Pay(Model, headless=True):
    org_id: str = field(filterable=True)
    salary: int = field(default=1, filterable=True)


class Typed(Model):
    level: int = field(default=1, filterable=True)
    token: UUID | None = field(default=None, filterable=True)


def bound(*conditions: tuple[str, Any, str]) -> Server:
    server = Server()
    server.register(Org, Plain, Pay, Typed)

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        for name, value, op in conditions:
            ctx.query.force(name, value, op)
        await next()

    return server


async def two_orgs(server: Server) -> tuple[Org, Org]:
    db = server.db(Org)
    ours = await db.create(tenant_id="a", name="ours")
    return ours, await db.create(tenant_id="b", name="theirs", parent_id=ours.id)


async def test_two_conditions_that_contradict_each_other_let_nothing_be_written(database_url: str) -> None:
    server = bound(("tenant_id", "a", "eq"), ("tenant_id", "b", "eq"))
    async with client(server, database=database_url) as http:
        answer = await http.post("/api/orgs", json={"name": "n"})
        stored = await server.db(Org).count()

    assert (answer.status_code, stored) == (422, 0)


async def test_an_action_is_bound_in_all_it_asks_for(database_url: str) -> None:
    server = bound(("tenant_id", "a", "eq"))

    @server.action("GET", "/report/{id}")
    async def report(ctx: Context) -> dict[str, Any]:
        tree = await ctx.recursive_query(Org, root_id=ctx.url_param("id"), parent_field="parent_id")
        [counted] = await ctx.aggregate(Org, select=[("count", None, "n")])
        return {"names": [row["name"] for row in tree], "n": counted["n"], "rows": tree}

    @server.action("POST", "/lock/{id}")
    async def lock(ctx: Context) -> Org:
        async with ctx.transaction():
            return await ctx.lock_for_update(Org, ctx.url_param("id"))

    async with client(server, database=database_url) as http:
        ours, theirs = await two_orgs(server)
        answer = await http.get(f"/api/report/{ours.id}")
        locked = await http.post(f"/api/lock/{theirs.id}")
        absent = await http.post("/api/lock/nobody")

    data = answer.json()["data"]
    assert (data["names"], data["n"]) == (["ours"], 1)
    assert "HIDDEN" not in answer.text
    assert (locked.status_code, locked.json()) == (absent.status_code, absent.json()) == (404, absent.json())


@pytest.mark.parametrize("what", ["aggregate", "recursive_query"])
async def test_a_model_that_cannot_be_bound_is_not_looked_at(what: str, database_url: str) -> None:
    server = bound(("tenant_id", "a", "eq"))

    @server.action("GET", "/look")
    async def look(ctx: Context) -> Any:
        if what == "aggregate":
            return await ctx.aggregate(Plain, select=[("count", None, "n")])
        return await ctx.recursive_query(Plain, root_id="x", parent_field="name")

    async with client(server, database=database_url) as http:
        error_of(await http.get("/api/look"), 500, "INTERNAL")


@pytest.mark.parametrize(
    ("name", "value", "op"),
    [("level", "x", "neq"), ("level", "5%", "like"), ("level", True, "eq"), ("token", "no uuid", "eq")],
)
async def test_a_value_of_the_wrong_type_binds_nothing_and_opens_nothing(
    name: str, value: Any, op: str, database_url: str
) -> None:
    server = bound((name, value, op))
    async with client(server, database=database_url) as http:
        await server.db(Typed).create(level=3)
        error_of(await http.get("/api/typeds"), 500, "INTERNAL")


async def test_a_uuid_binds_however_it_is_written(database_url: str) -> None:
    token = UUID("6f1e4c2a-0000-4000-8000-00000000abcd")
    server = bound(("token", str(token).upper(), "eq"))
    async with client(server, database=database_url) as http:
        created = await http.post("/api/typeds", json={})
        listed = await http.get("/api/typeds")

    assert created.json()["data"]["token"] == str(token)
    assert listed.json()["meta"]["total"] == 1


async def test_text_operators_bind_writes_as_they_bind_reads(database_url: str) -> None:
    server = bound(("name", "team-", "starts_with"))
    async with client(server, database=database_url) as http:
        inside = await http.post("/api/plains", json={"name": "Team-a"})
        outside = await http.post("/api/plains", json={"name": "other"})

    assert (inside.status_code, outside.status_code) == (201, 422)


async def test_a_model_without_routes_is_not_reached_by_relations(database_url: str) -> None:
    server = bound()
    async with client(server, database=database_url) as http:
        for asked in ("include=pays", "filter=pays.salary:gt:0"):
            assert (await http.get(f"/api/orgs?{asked}")).status_code == 400


async def test_code_that_compares_two_fields_of_different_kinds_is_refused(database_url: str) -> None:
    server = bound()
    async with client(server, database=database_url):
        with pytest.raises(InvalidQuery):
            await server.db(Typed).list([("level", "eq_field", "token")])
