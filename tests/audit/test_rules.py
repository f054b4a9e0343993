"""The rules of an audited model bind the rows of the trail that tell of its records."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Next, Operation, Server, WithDeletedAt, field
from maniflex.audit import TableSink
from maniflex.middleware import auth, db, response
from tests.audit.world import serving, sign_in

BOSS = {"x-user": "root;;auditor boss"}
ANN = {"x-user": "ann;;auditor"}


class Team(Model, table="trail_teams"):
    owner: str = ""


class Person(Model, WithDeletedAt, table="trail_people"):
    name: str = ""
    salary: int = 0
    owner: str = field(default="", filterable=True)
    team_id: str | None = field(default=None, relation=Team)


def is_boss(ctx: Context) -> bool:
    return ctx.has_role("boss")


def caller(ctx: Context) -> Any:
    return db.ALL if is_boss(ctx) else ctx.require_auth().user_id


def redact(server: Server) -> None:
    hide = response.redact_field("salary", when=lambda ctx: not is_boss(ctx))
    server.pipeline.response.register(hide, models=[Person])


def guard(server: Server) -> None:
    server.pipeline.auth.register(auth.require_role("boss"), models=[Person])


def guard_records(server: Server) -> None:
    server.pipeline.auth.register(auth.require_role("boss"), models=[Person], operations="read")


def guard_by_code(server: Server) -> None:
    @server.pipeline.auth.middleware(models=[Person])
    async def own(ctx: Context, next: Next) -> None:
        if not is_boss(ctx):
            ctx.query.force("owner", ctx.require_auth().user_id)
        await next()


def scope(server: Server) -> None:
    server.pipeline.auth.register(db.force_filter("owner", caller), models=[Person])


def scope_by_parent(server: Server) -> None:
    server.pipeline.auth.register(db.force_filter_via("team", "owner", caller), models=[Person])


def police(server: Server) -> None:
    policy = auth.enforce(lambda ctx, person: is_boss(ctx) or person.owner == ctx.require_auth().user_id)
    server.pipeline.db.register(policy, models=[Person])


def audited(*rules: Any) -> Server:
    server = Server(path_prefix="")
    server.register(Team, Person)
    server.pipeline.auth.register(sign_in)
    sink = TableSink(routes=True, admin_role="auditor")
    server.pipeline.db.register(db.audit_log(sink, changes=True), models=[Person])
    server.pipeline.response.register(
        db.audit_reads(sink, required=True), models=[Person], operations=Operation.READS
    )
    for rule in rules:
        rule(server)
    return server


async def rows_for(world: Any, who: dict[str, str], path: str = "/audit_log?limit=100") -> list[Any]:
    answer = await world.http.get(path, headers=who)
    assert answer.status_code == 200, answer.text
    for row in answer.json()["data"]:
        one = await world.http.get(f"{path.partition('?')[0]}/{row['id']}", headers=who)
        assert one.json()["data"] == row
    rows: list[Any] = answer.json()["data"]
    return rows


async def change_people(world: Any) -> None:
    """Bob's record is made, handed to Ann, handed on to Eve and deleted; Ann's own is changed and erased."""
    people, teams = world.server.db(Person), world.server.db(Team)
    for name in ("ann", "bob", "eve"):
        await teams.create(id=name, owner=name)
    await people.create(id="b", name="Bob", salary=1, owner="bob", team_id="bob")
    await people.update("b", owner="ann", team_id="ann")
    await people.update("b", name="Bob of Ann")
    await people.update("b", owner="eve", team_id="eve")
    await people.create(id="a", name="Ann", salary=2, owner="ann", team_id="ann")
    await people.update("a", salary=3)
    await people.delete("a")


async def test_a_redacted_field_is_in_no_row_of_the_trail(database_url: str) -> None:
    async with serving(audited(redact), database_url) as world:
        await change_people(world)
        assert "salary" not in str(await rows_for(world, ANN))
        assert "salary" in str(await rows_for(world, BOSS))
        assert (await world.http.get("/audit_log", headers=ANN)).json()["meta"]["total"] == 7


@pytest.mark.parametrize("rule", [guard, guard_records])
async def test_rows_of_a_model_that_is_closed_to_the_reader_are_not_there(
    rule: Any, database_url: str
) -> None:
    async with serving(audited(rule), database_url) as world:
        await change_people(world)
        await world.http.get("/trail_people/b", headers=BOSS)
        assert await rows_for(world, ANN) == []
        assert (await world.http.get("/audit_log", headers=ANN)).json()["meta"]["total"] == 0
        shown = await rows_for(world, BOSS)
        assert len(shown) == 7
        one = f"/audit_log/{shown[0]['id']}"
        assert (await world.http.get(one, headers=ANN)).status_code == 404
        assert await rows_for(world, ANN, "/read_audit_log") == []
        assert len(await rows_for(world, BOSS, "/read_audit_log")) == 1


@pytest.mark.parametrize("rule", [scope, scope_by_parent, guard_by_code, police])
async def test_rows_about_records_outside_are_not_there(rule: Any, database_url: str) -> None:
    """Neither of a record that is outside now, nor of a time when it was outside."""
    async with serving(audited(rule), database_url) as world:
        await change_people(world)
        rows = await rows_for(world, ANN)
        assert {row["resource_id"] for row in rows} == {"a"}
        assert [row["operation"] for row in rows] == ["create", "update", "delete"]
        [first, *_] = await rows_for(world, BOSS)
        refused = await world.http.get(f"/audit_log/{first['id']}", headers=ANN)
        assert refused.status_code in (403, 404)
        assert "Bob" not in refused.text
        assert "total" not in (await world.http.get("/audit_log", headers=ANN)).json()["meta"]

        await world.server.db(Person).update("b", owner="ann", team_id="ann")
        rows = [row for row in await rows_for(world, ANN) if row["resource_id"] == "b"]
        assert [row["result"]["name"] for row in rows] == ["Bob of Ann"]
        assert len(await rows_for(world, BOSS)) == 8


async def test_what_was_erased_is_judged_by_what_the_trail_tells(database_url: str) -> None:
    async with serving(audited(scope), database_url) as world:
        await change_people(world)
        store = world.server.db(Person)
        await store.create(id="c", name="Cid", owner="ann")
        await store.create(id="d", name="Dora", owner="bob")
        async with world.server.transaction():
            for id in ("c", "d"):
                await world.server.raw_exec("DELETE FROM trail_people WHERE id = ?", id)
        names = {row["resource_id"] for row in await rows_for(world, ANN)}
        assert names == {"a", "c"}
