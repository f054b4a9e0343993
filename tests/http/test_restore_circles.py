"""Softly deleted records that refer to each other: they come back together, or not at all."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from maniflex import (
    Conflict,
    Context,
    DatabaseError,
    Model,
    Next,
    Server,
    WithDeletedAt,
    WithIsDeleted,
    field,
)
from maniflex.testing import FakeClock, client
from tests.kit.http import created, data_of, error_of, total


class Team(Model, WithDeletedAt, restore=True):
    name: str = field(default="", unique=True)
    tenant_id: str = field(default="", relation=None)
    lead_id: str | None = field(default=None, relation="Person", on_delete="cascade")
    firm_id: str | None = field(default=None, on_delete="cascade")


class Person(Model, WithIsDeleted, restore=True):
    name: str = field(default="", unique=True)
    tenant_id: str = field(default="", relation=None)
    team_id: str | None = field(default=None, on_delete="cascade")


class Firm(Model, WithDeletedAt, restore=True):
    name: str = ""


MODELS = (Team, Person, Firm)


async def ring(server: Server, *, firm_id: str | None = None, tenants: tuple[str, str] = ("", "")) -> None:
    """A team and its lead, who is of that team; and somebody the lead has nothing to do with."""
    await server.db(Team).create(id="t", name="t", firm_id=firm_id, tenant_id=tenants[0])
    await server.db(Person).create(id="lead", name="lead", team_id="t", tenant_id=tenants[1])
    await server.db(Person).create(id="other", name="other", team_id="t", tenant_id=tenants[1])
    await server.db(Team).update("t", lead_id="lead")


@pytest.mark.parametrize("path", ["/api/teams/t", "/api/people/lead"])
async def test_a_circle_comes_back_as_a_whole(database_url: str, path: str) -> None:
    clock = FakeClock(datetime(2026, 5, 1, tzinfo=UTC))
    server = Server(clock=clock)
    server.register(*MODELS)
    async with client(server, database=database_url) as http:
        await ring(server)
        assert (await http.delete(path)).status_code == 204
        assert (await total(http, "/api/teams"), await total(http, "/api/people")) == (0, 0)
        clock.advance(timedelta(hours=1))

        assert data_of(await http.post(f"{path}/restore"))["updated_at"] == "2026-05-01T01:00:00Z"
        team, lead = data_of(await http.get("/api/teams/t")), data_of(await http.get("/api/people/lead"))
        assert (team["lead_id"], lead["team_id"]) == ("lead", "t")
        assert {team["updated_at"], lead["updated_at"]} == {"2026-05-01T01:00:00Z"}
        error_of(await http.get("/api/people/other"), 404, "NOT_FOUND")  # it is not needed by the others
        assert (await http.post("/api/people/other/restore")).status_code == 200


async def test_a_circle_waits_for_what_it_refers_to(database_url: str) -> None:
    server = Server()
    server.register(*MODELS)
    async with client(server, database=database_url) as http:
        await server.db(Firm).create(id="f")
        await ring(server, firm_id="f")
        await http.delete("/api/firms/f")

        for path in ("/api/teams/t", "/api/people/lead"):
            error_of(await http.post(f"{path}/restore"), 409, "CONFLICT")
        assert (await total(http, "/api/teams"), await total(http, "/api/people")) == (0, 0)
        await http.post("/api/firms/f/restore")
        assert (await http.post("/api/people/lead/restore")).status_code == 200
        assert (await http.get("/api/teams/t")).status_code == 200


async def test_a_value_taken_meanwhile_leaves_the_whole_circle_deleted(database_url: str) -> None:
    server = Server()
    server.register(*MODELS)
    async with client(server, database=database_url) as http:
        await ring(server)
        await http.delete("/api/teams/t")
        taken = await created(http, "/api/people", name="lead")

        error_of(await http.post("/api/teams/t/restore"), 409, "CONFLICT")
        error_of(await http.post("/api/people/lead/restore"), 409, "CONFLICT")
        assert await total(http, "/api/teams") == 0

        async def caught() -> None:
            async with server.transaction():
                with pytest.raises(Conflict):
                    await server.db(Team).restore("t")

        with pytest.raises(DatabaseError, match="nothing was committed"):
            await caught()
        assert await total(http, "/api/teams") == 0
        await http.delete(f"/api/people/{taken['id']}")
        assert (await http.post("/api/teams/t/restore")).status_code == 200


async def test_no_circle_reaches_out_of_a_scope(database_url: str) -> None:
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant") or "none")
        await next()

    server = Server()
    server.register(*MODELS)
    server.pipeline.auth.register(bind, models=[Team, Person])
    async with client(server, database=database_url) as http:
        await ring(server, tenants=("t1", "t2"))
        await server.db(Team).delete("t")

        answer = await http.post("/api/teams/t/restore", headers={"x-tenant": "t1"})
        assert [d["field"] for d in error_of(answer, 409, "CONFLICT")["details"]] == ["lead_id"]
        error_of(await http.post("/api/teams/t/restore", headers={"x-tenant": "t2"}), 404, "NOT_FOUND")
        assert [*await server.db(Team).list(), *await server.db(Person).list()] == []
        await server.db(Team).restore("t")  # code is not bound
        assert [person.id for person in await server.db(Person).list()] == ["lead"]


async def test_restores_of_both_ends_at_once_leave_one_circle(database_url: str) -> None:
    server = Server()
    server.register(*MODELS)
    async with client(server, database=database_url) as http:
        await ring(server)
        for _ in range(3):
            await http.delete("/api/teams/t")
            paths = ["/api/teams/t/restore", "/api/people/lead/restore"]
            answers = await asyncio.gather(*(http.post(path) for path in paths))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses in ([200, 404], [200, 409])
            assert (await total(http, "/api/teams"), await total(http, "/api/people")) == (1, 1)


class Node(Model, WithDeletedAt, restore=True):
    left_id: str | None = field(default=None, relation="Node", on_delete="cascade")
    right_id: str | None = field(default=None, relation="Node", on_delete="cascade")


@pytest.mark.parametrize("seed", range(4))
async def test_random_graphs_come_back_as_the_rules_say(database_url: str, seed: int) -> None:
    dice = random.Random(seed)
    ids = [f"{number:02}" for number in range(24)]
    edges: dict[str, set[str]] = {node: set() for node in ids}
    server = Server()
    server.register(Node)
    async with client(server, database=database_url) as http:
        for node in ids:
            await server.db(Node).create(id=node)
        for node in ids:
            keys = {name: dice.choice(ids) for name in ("left_id", "right_id") if dice.random() < 0.4}
            edges[node] = set(keys.values())
            await http.patch(f"/api/nodes/{node}", json=keys or {"left_id": None})
        live = set(ids)
        for node in dice.sample(ids, 12):
            live -= {n for n in live if node in live and node in reached(n, edges)}
            await http.delete(f"/api/nodes/{node}")
        for node in dice.sample(sorted(set(ids) - live), len(ids) - len(live)):
            answer = await http.post(f"/api/nodes/{node}/restore")
            needed = reached(node, edges) - live
            if node in live:
                assert answer.status_code == 404
            elif all(node in reached(other, edges) for other in needed):
                assert answer.status_code == 200
                live |= needed
            else:
                assert answer.status_code == 409
            listed = (await http.get("/api/nodes?limit=100")).json()["data"]
            assert {record["id"] for record in listed} == live


def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    """The node and all that it refers to, directly or not."""
    found, ahead = {start}, [start]
    while ahead:
        more = edges[ahead.pop()] - found
        found |= more
        ahead += more
    return found
