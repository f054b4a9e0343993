"""A5: the table over REST, for the admin role, bound by tenant."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, DeclarationError, Operation, Server
from maniflex.audit import TableSink
from maniflex.middleware import db
from tests.audit.world import Order, Shop, new_server, serving

ACME = {"x-user": "ada;acme;auditor"}
OTHER = {"x-user": "eve;evil;auditor"}
OPERATOR = {"x-user": "root;;auditor"}


def audited(**options: Any) -> Server:
    server = new_server()
    sink = TableSink(routes=True, admin_role="auditor")
    server.pipeline.db.register(db.audit_log(sink, changes=True), models=[Order, Shop])
    server.pipeline.response.register(db.audit_reads(TableSink(**options), required=True), models=[Order])
    return server


async def test_two_tenants_see_nothing_of_each_other(database_url: str) -> None:
    async with serving(audited(), database_url) as world:
        for who in (ACME, OTHER, ACME):
            await world.http.post("/audit_orders", json={"remark": who["x-user"]}, headers=who)
        await world.server.db(Order).create(note="of nobody")

        async def seen(who: dict[str, str], query: str = "") -> list[Any]:
            answer = await world.http.get(f"/audit_log{query}", headers=who)
            assert answer.status_code == 200, answer.text
            records: list[Any] = answer.json()["data"]
            return records

        own = await seen(ACME)
        assert [r["tenant_id"] for r in own] == ["acme", "acme"]
        assert [r["tenant_id"] for r in await seen(OTHER)] == ["evil"]
        assert len(await seen(OPERATOR)) == 4
        assert await seen(OTHER, "?filter=tenant_id:eq:acme") == []
        assert await seen(OTHER, "?filter=actor:eq:ada") == []
        assert len(await seen(ACME, "?filter=model:eq:Order&sort=timestamp:asc")) == 2
        one = f"/audit_log/{own[0]['id']}"
        assert (await world.http.get(one, headers=ACME)).json()["data"]["changes"]["remark"]["to"]
        assert (await world.http.get(one, headers=OTHER)).status_code == 404


async def test_only_the_role_reads_and_nobody_writes(database_url: str) -> None:
    async with serving(audited(), database_url) as world:
        await world.http.post("/audit_orders", json={}, headers=ACME)
        [row] = (await world.http.get("/audit_log", headers=ACME)).json()["data"]
        assert (await world.http.get("/audit_log")).status_code == 401
        clerk = {"x-user": "bob;acme;clerk"}
        assert (await world.http.get("/audit_log", headers=clerk)).status_code == 403
        assert (await world.http.head("/audit_log", headers=clerk)).status_code == 403
        for method, path in (
            ("POST", "/audit_log"),
            ("PATCH", f"/audit_log/{row['id']}"),
            ("DELETE", f"/audit_log/{row['id']}"),
        ):
            assert (await world.http.request(method, path, json={}, headers=OPERATOR)).status_code == 405
        assert (await world.http.get("/read_audit_log", headers=OPERATOR)).status_code == 404
        paths = (await world.server.openapi())["paths"]
        assert {path: set(paths[path]) for path in paths if "audit_log" in path} == {
            "/audit_log": {"get"},
            "/audit_log/{id}": {"get"},
        }


async def test_reads_have_a_route_of_their_own(database_url: str) -> None:
    async with serving(audited(routes=True, admin_role="auditor"), database_url) as world:
        await world.http.get("/audit_orders", headers=ACME)
        [row] = (await world.http.get("/read_audit_log", headers=ACME)).json()["data"]
        assert (row["operation"], row["record_count"], row["actor"]) == ("list", 0, "ada")
        assert (await world.http.get("/read_audit_log", headers=OTHER)).json()["data"] == []


async def test_actions_have_a_route_of_their_own(database_url: str) -> None:
    server = new_server()
    entry = db.audit_action(TableSink(routes=True, admin_role="auditor"))

    @server.action("POST", "/orders/{id}/pay", middleware=[entry])
    async def pay(ctx: Context) -> None: ...

    async with serving(server, database_url) as world:
        for number, who in (("1", ACME), ("2", OTHER)):
            await world.http.post(f"/orders/{number}/pay", headers=who)
        for who, params in (
            (ACME, [{"id": "1"}]),
            (OTHER, [{"id": "2"}]),
            (OPERATOR, [{"id": "1"}, {"id": "2"}]),
        ):
            rows = (await world.http.get("/action_audit_log", headers=who)).json()["data"]
            assert [row["params"] for row in rows] == params


async def test_without_routes_there_are_none(sqlite_url: str) -> None:
    server = new_server()
    server.pipeline.db.register(db.audit_log(), operations=Operation.WRITES)
    async with serving(server, sqlite_url) as world:
        assert (await world.http.get("/audit_log", headers=OPERATOR)).status_code == 404


def test_two_roles_for_one_table_stop_the_start() -> None:
    server = audited()
    server.pipeline.db.register(db.audit_log(TableSink(routes=True)), models=[Order])
    with pytest.raises(DeclarationError, match="different roles read one table"):
        server.seal()
