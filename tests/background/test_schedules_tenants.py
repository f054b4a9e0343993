"""Schedules belong to a tenant and act in the name of an actor; operators manage those of all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Run, Server, field
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule
from maniflex.background.schedules.targets import ACTION
from maniflex.errors import DeclarationError, InvalidSchedule, NotFound
from maniflex.middleware import db
from tests.kit.http import data_of, error_of
from tests.kit.run_routes import known
from tests.kit.schedules import Bench, a_bench

HOUR = timedelta(hours=1)
OPERATOR = {"x-user": "op", "x-roles": "admin"}
RED = {"x-user": "rita", "x-roles": "admin", "x-tenant": "red"}
BLUE = {"x-user": "bob", "x-roles": "admin", "x-tenant": "blue"}
A_SCHEDULE = {"name": "nightly", "cron": "@hourly", "target": "report.v1", "payload": {"n": 1}}


class Note(Model):
    text: str
    tenant_id: str = field(relation=None)


def with_reports(server: Server) -> None:
    server.pipeline.auth.register(known)

    @server.work.handler("report.v1", public=True, max_attempts=3)
    async def report(run: Run) -> dict[str, Any]:
        return {"tenant": run.tenant_id, "actor": run.actor_id}

    @server.work.handler("billing.v1")
    async def bill(run: Run) -> None: ...

    @server.action("POST", "/tidy", schedulable=True)
    async def tidy(ctx: Context) -> dict[str, Any]:
        assert ctx.auth is not None
        return {"tenant": ctx.auth.tenant_id, "user": ctx.auth.user_id, "roles": list(ctx.auth.roles)}


@asynccontextmanager
async def serving(
    url: str,
    declare: Callable[[Schedules], Any] = Schedules.enable,
    handlers: Callable[[Server], object] = with_reports,
) -> AsyncIterator[tuple[httpx.AsyncClient, Bench]]:
    async with a_bench(url, declare, handlers=handlers) as bench:
        transport = httpx.ASGITransport(bench.server)
        async with httpx.AsyncClient(transport=transport, base_url="http://test/api") as http:
            yield http, bench


async def make(http: httpx.AsyncClient, who: dict[str, str], **changes: Any) -> Any:
    return data_of(await http.post("/schedules", json={**A_SCHEDULE, **changes}, headers=who), 201)


async def names(http: httpx.AsyncClient, who: dict[str, str], path: str = "/schedules") -> list[str]:
    return sorted(one["name"] for one in data_of(await http.get(path, headers=who)))


async def test_each_tenant_has_names_of_its_own_and_operators_see_all(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        made = [await make(http, who) for who in (RED, BLUE, OPERATOR)]
        assert [(one["tenant_id"], one["actor_id"]) for one in made] == [
            ("red", "rita"),
            ("blue", "bob"),
            (None, "op"),
        ]
        for who in (RED, BLUE, OPERATOR):
            refused = error_of(await http.post("/schedules", json=A_SCHEDULE, headers=who), 409, "CONFLICT")
            assert [detail["field"] for detail in refused["details"]] == ["name"]
        assert await names(http, RED) == ["nightly"]
        assert await names(http, OPERATOR) == ["nightly"] * 3
        of_red = await names(http, OPERATOR, "/schedules?filter=tenant_id:eq:red")
        assert of_red == ["nightly"]


async def test_a_schedule_of_another_tenant_is_not_there_on_any_route(database_url: str) -> None:
    async with serving(database_url) as (http, bench):
        foreign = [(await make(http, who))["id"] for who in (BLUE, OPERATOR)]
        bench.clock.advance(HOUR)
        for id in foreign:
            path = f"/schedules/{id}"
            for method, below, body in (
                ("GET", "", None),
                ("PATCH", "", {"payload": {"n": 2}}),
                ("PUT", "", {"cron": "@daily"}),
                ("PUT", "/status", {"status": "inactive"}),
                ("POST", "/activate", None),
                ("POST", "/deactivate", None),
                ("POST", "/run", None),
                ("DELETE", "", None),
            ):
                answer = await http.request(method, f"{path}{below}", json=body, headers=RED)
                assert answer.status_code == 404, (method, below, answer.text)
        for answer in (
            await http.delete(f"/schedules?ids={','.join(foreign)}", headers=RED),
            await http.post("/schedules/delete", json={"ids": foreign}, headers=RED),
        ):
            assert data_of(answer) == {"deleted": 0}
        assert (await http.delete(f"/schedules/{','.join(foreign)}", headers=RED)).status_code == 404
        assert await names(http, RED, "/schedules/due") == []
        assert len(await names(http, OPERATOR, "/schedules/due")) == 2
        await bench.scheduler.tick()
        assert data_of(await http.get("/schedule_firing", headers=RED)) == []
        assert len(data_of(await http.get("/schedule_firing", headers=BLUE))) == 1
        assert len(data_of(await http.get("/schedule_firing", headers=OPERATOR))) == 2
        assert data_of(await http.get(f"/schedules/{foreign[0]}", headers=BLUE))["status"] == "active"


async def test_a_caller_cannot_say_whose_a_schedule_is(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        claims = {"tenant_id": "blue", "actor_id": "bob"}
        made = await make(http, RED, **claims)
        changed = data_of(await http.patch(f"/schedules/{made['id']}", json=claims, headers=RED))
        assert (changed["tenant_id"], changed["actor_id"]) == ("red", "rita")


async def test_without_the_role_a_tenant_does_not_help(sqlite_url: str) -> None:
    async with serving(sqlite_url) as (http, _):
        clerk = {"x-user": "cleo", "x-tenant": "red"}
        for answer in (
            await http.get("/schedules", headers=clerk),
            await http.post("/schedules", json=A_SCHEDULE, headers=clerk),
            await http.get("/schedule_firing", headers=clerk),
        ):
            assert answer.status_code == 403


async def test_what_is_fired_carries_tenant_and_actor(database_url: str) -> None:
    async with serving(database_url) as (http, bench):
        await make(http, RED)
        await make(http, RED, name="tidy", kind="action", target="tidy", payload=None)
        await make(http, BLUE)
        bench.clock.advance(HOUR)
        assert await bench.scheduler.tick() == 3
        await bench.server.work.worker().drain()
        reports = [(run.tenant_id, run.actor_id, run.result) for run in await bench.runs("report.v1")]
        [tidied] = await bench.runs(ACTION)
        by_hand = await http.post(
            f"/schedules/{(await bench.schedules.get('nightly', tenant_id='red')).id}/run", headers=OPERATOR
        )
        run = await bench.server.work.get(data_of(by_hand, 202)["run_id"])

    assert sorted(reports) == [
        ("blue", "bob", {"tenant": "blue", "actor": "bob"}),
        ("red", "rita", {"tenant": "red", "actor": "rita"}),
    ]
    assert (tidied.tenant_id, tidied.result) == ("red", {"tenant": "red", "user": "rita", "roles": []})
    assert (run.tenant_id, run.actor_id) == ("red", "rita")


async def test_who_says_what_a_schedule_does_becomes_its_actor(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        path = f"/schedules/{(await make(http, RED))['id']}"
        ruth = {**RED, "x-user": "ruth"}
        for change, actor in (
            ({"cron": "@daily"}, "rita"),
            ({"payload": {"n": 1}}, "rita"),  # as it was
            ({"payload": {"n": 2}}, "ruth"),
        ):
            changed = data_of(await http.patch(path, json=change, headers=ruth))
            assert (changed["actor_id"], changed["updated_by"]) == (actor, "ruth"), change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"target": "billing.v1"}, "target"),
        ({"target": "unheard.v1"}, "target"),
        ({"attempts": 4}, "attempts"),
    ],
)
async def test_a_tenant_schedules_what_it_could_submit(sqlite_url: str, change: Any, field: str) -> None:
    async with serving(sqlite_url) as (http, _):
        refused = error_of(
            await http.post("/schedules", json={**A_SCHEDULE, **change}, headers=RED), 400, "INVALID_SCHEDULE"
        )
        assert refused["details"][0]["field"] == field
        path = f"/schedules/{(await make(http, RED))['id']}"
        error_of(await http.patch(path, json=change, headers=RED), 400, "INVALID_SCHEDULE")
        await make(http, OPERATOR, **change)


async def test_rules_of_the_application_that_force_a_tenant_bind_schedules(database_url: str) -> None:
    def handlers(server: Server) -> None:
        with_reports(server)

        @server.pipeline.auth.middleware()
        async def in_the_tenant_of_the_header(ctx: Context, next: Next) -> None:
            if tenant := ctx.header("x-office"):
                ctx.query.force("tenant_id", tenant)
            await next()

    async with serving(database_url, handlers=handlers) as (http, _):
        made = await make(http, {**OPERATOR, "x-office": "green"})
        assert made["tenant_id"] == "green"
        assert await names(http, {**OPERATOR, "x-office": "grey"}) == []


# -- code


def with_notes(server: Server) -> None:
    server.register(Note)
    server.pipeline.auth.register(known)
    server.pipeline.auth.register(db.tenancy())

    @server.work.handler("notes.v1", scoped=True, public=True)
    async def count(run: Run) -> list[str]:
        return sorted(note.text for note in await server.db(Note).list())


async def test_a_scoped_handler_works_in_the_tenant_of_its_schedule(database_url: str) -> None:
    def declare(schedules: Schedules) -> None:
        for tenant in ("red", "blue"):
            schedules.add("count", cron="@hourly", run="notes.v1", tenant_id=tenant, actor_id="clock")

    async with a_bench(database_url, declare, handlers=with_notes) as bench:
        for tenant in ("red", "blue"):
            await bench.server.db(Note).create(text=f"of {tenant}", tenant_id=tenant)
        await bench.schedules.declare()  # again, as another start does
        bench.clock.advance(HOUR)
        assert await bench.scheduler.tick() == 2
        await bench.server.work.worker().drain()
        runs = await bench.runs("notes.v1")
        stored = await bench.schedules.list()
        of_red = await bench.schedules.list(tenant_id="red")

    assert sorted((run.tenant_id, run.actor_id, run.result) for run in runs) == [
        ("blue", "clock", ["of blue"]),
        ("red", "clock", ["of red"]),
    ]
    assert sorted(one.tenant_id or "" for one in stored) == ["blue", "red"]
    assert [one.tenant_id for one in of_red] == ["red"]


def test_a_declared_schedule_of_a_scoped_handler_without_a_tenant_stops_the_start() -> None:
    server = Server("sqlite://", background=False)
    with_notes(server)
    server.schedules.add("count", cron="@hourly", run="notes.v1", actor_id="clock")

    with pytest.raises(DeclarationError, match=r"schedule 'count': tenant_id: the handler of 'notes.v1' is"):
        server.seal()


def test_a_rule_by_owner_asks_for_an_actor_and_no_rule_asks_for_nothing() -> None:
    def a_server(*rules: Any) -> Server:
        server = Server("sqlite://", background=False)
        server.register(Note)
        for rule in rules:
            server.pipeline.auth.register(rule, models=[Note])

        @server.work.handler("notes.v1", scoped=True)
        async def count(run: Run) -> None: ...

        return server

    free = a_server(db.force_filter("tenant_id", "red"))
    free.schedules.add("count", cron="@hourly", run="notes.v1")
    free.seal()

    def whose(ctx: Context) -> str:
        return ctx.auth.user_id if ctx.auth else ""

    bound = a_server(db.force_filter("tenant_id", whose))
    bound.schedules.add("count", cron="@hourly", run="notes.v1", actor_id="rita")
    bound.schedules.add("lost", cron="@hourly", run="notes.v1")
    with pytest.raises(DeclarationError, match=r"schedule 'lost': actor_id: the handler of 'notes.v1' is"):
        bound.seal()


async def test_a_scoped_handler_without_a_tenant_is_refused_from_code_and_clients_alike(
    sqlite_url: str,
) -> None:
    async with serving(sqlite_url, handlers=with_notes) as (http, bench):
        wanted = {"name": "count", "cron": "@hourly", "target": "notes.v1"}
        refused = error_of(
            await http.post("/schedules", json=wanted, headers=OPERATOR), 400, "INVALID_SCHEDULE"
        )
        assert refused["details"][0]["field"] == "tenant_id"
        assert data_of(await http.post("/schedules", json=wanted, headers=RED), 201)["tenant_id"] == "red"
        with pytest.raises(InvalidSchedule, match="tenant_id"):
            await bench.schedules.create("mine", cron="@hourly", run="notes.v1")
        made = await bench.schedules.create("mine", cron="@hourly", run="other.v1")
        with pytest.raises(InvalidSchedule, match="tenant_id"):
            await bench.schedules.update(made.id, run="notes.v1")


async def test_a_name_means_the_schedule_of_the_callers_tenant_and_else_the_one_without(
    database_url: str,
) -> None:
    def handlers(server: Server) -> None:
        with_reports(server)

        @server.action("POST", "/which")
        async def which(ctx: Context) -> Any:
            return [(await server.schedules.get(ctx.query_param("name"))).tenant_id]

        @server.action("POST", "/make")
        async def make_one(ctx: Context) -> Any:
            made = await server.schedules.create("by action", cron="@hourly", run="report.v1")
            return [made.tenant_id, made.actor_id]

    def declare(schedules: Schedules) -> None:
        schedules.add("nightly", cron="@hourly", run="report.v1")
        schedules.add("nightly", cron="@hourly", run="report.v1", tenant_id="red")

    async with serving(database_url, declare, handlers) as (http, bench):
        assert data_of(await http.post("/which?name=nightly", headers=RED)) == ["red"]
        assert data_of(await http.post("/which?name=nightly", headers=BLUE)) == [None]
        assert data_of(await http.post("/make", headers=BLUE)) == ["blue", "bob"]
        assert (await bench.schedules.get("nightly")).tenant_id is None
        of_red = await bench.schedules.get("nightly", tenant_id="red")
        assert (await bench.schedules.deactivate("nightly", tenant_id="red")).id == of_red.id
        assert (await bench.schedules.get(of_red.id)).status == "inactive"
        for name, tenant in (("nightly", "blue"), (of_red.id, "blue"), (of_red.id, ""), ("by action", "red")):
            with pytest.raises(NotFound):
                await bench.schedules.get(name, tenant_id=tenant)


def test_one_name_twice_in_a_tenant_is_a_mistake() -> None:
    server = Server("sqlite://", background=False)
    for _ in range(2):
        server.schedules.add("nightly", cron="@hourly", run="r.v1", tenant_id="red")

    with pytest.raises(
        DeclarationError, match="schedule 'nightly' of the tenant 'red': there is one of this"
    ):
        server.seal()


# -- tables of an earlier version


OLDER = (
    "DROP INDEX schedules_name_without_tenant",
    "DROP INDEX uq_schedules_tenant_id_name",
    "ALTER TABLE schedules DROP COLUMN tenant_id",
    "ALTER TABLE schedules DROP COLUMN actor_id",
    "ALTER TABLE schedule_firing DROP COLUMN tenant_id",
    "CREATE UNIQUE INDEX uq_schedules_name ON schedules (name)",
)


async def test_a_start_takes_over_the_tables_of_an_earlier_version(database_url: str) -> None:
    async with serving(database_url) as (_, bench):
        await bench.schedules.create("nightly", cron="@hourly", run="report.v1")
        for statement in OLDER:
            await bench.server.raw_exec(statement)

    async with serving(database_url) as (http, bench):
        older = await bench.schedules.get("nightly")
        assert (older.tenant_id, older.actor_id) == (None, None)
        assert await names(http, RED) == []
        assert (await make(http, RED))["tenant_id"] == "red"
        assert (await http.post("/schedules", json=A_SCHEDULE, headers=OPERATOR)).status_code == 409
        bench.clock.advance(HOUR)
        assert await bench.scheduler.tick() == 2
        assert len(await bench.server.db(Schedule).list()) == 2
